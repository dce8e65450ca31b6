"""`paceline chat`: a conversation in the terminal."""

from __future__ import annotations

import sys
from contextlib import suppress
from typing import Any

from paceline.cli import options as o
from paceline.errors import PacelineError
from paceline.types import SamplingParams

_HELP = "/reset starts anew, /quit (or end of input) leaves, Ctrl-C stops an answer"


def chat(
    model: o.Model = "smollm2-135m",
    runtime: o.Runtime = "auto",
    device: o.Device = None,
    precision: o.Precision = None,
    layout: o.TreeLayout = None,
    drafter: o.Drafter = "auto",
    verifier: o.Verifier = "auto",
    controller: o.Controller = "auto",
    nodes: o.Nodes = None,
    depth: o.Depth = None,
    draft_model: o.DraftModel = None,
    threads: o.Threads = None,
    max_context: o.MaxContext = None,
    kv_precision: o.KvPrecision = None,
    max_new_tokens: o.MaxNewTokens = 512,
    temperature: o.Temperature = 0.0,
    top_k: o.TopK = 0,
    top_p: o.TopP = 1.0,
    min_p: o.MinP = 0.0,
    repetition_penalty: o.RepetitionPenalty = 1.0,
    seed: o.Seed = 0,
    system: o.System = None,
) -> None:
    """Talk with a model. /reset starts anew, /quit leaves, Ctrl-C stops an answer."""
    params = SamplingParams(
        temperature=temperature,
        top_k=top_k,
        top_p=top_p,
        min_p=min_p,
        repetition_penalty=repetition_penalty,
        seed=seed,
        max_new_tokens=max_new_tokens,
    )
    checked = o.runtime_options(
        device, precision, layout, threads, max_context, kv_precision=kv_precision
    )
    o.check_names(runtime, verifier, controller, drafter)

    from paceline import loading
    from paceline.cli.output import remark

    engine = loading.load(
        model,
        runtime=runtime,
        device=checked.device,
        precision=checked.precision,
        layout=checked.layout,
        threads=checked.threads,
        max_context=checked.max_context,
        kv_precision=checked.kv_precision,
        drafter=drafter,
        verifier=verifier,
        controller=controller,
        nodes=nodes,
        depth=depth,
        draft_model=draft_model,
        max_batch=1,
    )
    remark(_HELP)
    first = [{"role": "system", "content": system}] if system else []
    messages = list(first)
    while (line := _read()) is not None:
        command = line.strip()
        if command == "/quit":
            break
        if command == "/reset":
            messages = list(first)
            remark("the conversation starts anew")
        elif command.startswith("/"):
            remark(f"{command.split()[0]} is unknown: {_HELP}")
        elif command:
            _turn(engine, messages, line, params)


def _read() -> str | None:
    """The next line, or None at the end of input."""
    terminal = sys.stdin.isatty()
    if terminal:
        with suppress(ImportError):
            import readline  # noqa: F401  (gives `input` editing and history)
    try:
        return input("> " if terminal else "")
    except (EOFError, KeyboardInterrupt):
        return None


def _turn(engine: Any, messages: list[dict[str, str]], line: str, params: SamplingParams) -> None:
    """Ask, stream the answer, and add both to `messages`, which a failed turn leaves alone."""
    from paceline.cli.interrupt import interruptible
    from paceline.cli.output import follow, remark, summary, write

    asked = [*messages, {"role": "user", "content": line}]
    shown = 0

    def show(event: Any) -> None:
        nonlocal shown
        shown += len(event.text)
        write(event.text)

    try:
        with interruptible() as interrupt:
            request = engine.add(asked, params)
            completion = follow(engine, request, interrupt, show)
    except PacelineError as error:
        advice = " (/reset starts anew)" if messages else ""
        remark(f"paceline: error: {error}{advice}")
        return
    write(completion.text[shown:] + "\n")
    remark(summary(engine, completion))
    messages[:] = [*asked, {"role": "assistant", "content": completion.text}]
    limit = params.max_new_tokens
    if completion.finish_reason == "length" and len(completion.token_ids) < limit:
        remark("the context is full, so the answer was cut: /reset starts anew")
