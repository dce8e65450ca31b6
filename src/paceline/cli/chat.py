"""`paceline chat`: a conversation in the terminal."""

from __future__ import annotations

import sys
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any

from paceline.cli import options as o
from paceline.cli.output import follow, interruptible, remark, summary, telling, write
from paceline.core.options import check_text
from paceline.core.types import SamplingParams
from paceline.errors import InvalidOption, PacelineError
from paceline.registry.options import Options

_HELP = (
    "/image FILE shows a picture with what comes next, /reset starts anew, /quit (or end of input) "
    "leaves, Ctrl-C stops an answer"
)


def chat(
    *,
    asked: Annotated[Options, o.Takes(*o.MODEL, *o.SPECULATION, *o.LIMITS, *o.CHATS)],
    max_new_tokens: o.MaxNewTokens = 512,
    sampling: o.SamplingOptions,
    seed: o.Seed = 0,
    stop_loops: o.StopLoops = False,
    endless: o.Endless = False,
    image: o.Image = None,
    system: o.System = None,
) -> None:
    """Talk with a model. /image FILE shows a picture, /reset starts anew, /quit leaves."""
    params = SamplingParams(
        **sampling.given(),
        seed=seed,
        max_new_tokens=max_new_tokens,
        stop_loops=stop_loops,
    )
    check_text("--system", system)
    asked.check()
    shown = o.pictures(image or ())

    with telling(asked.model):
        engine, _ = o.load(replace(asked, max_batch=1))
    if engine.tokenizer.chat_template is None:
        raise InvalidOption(
            "the model has no chat template: give one (--chat-template), or use paceline generate"
        )
    params = sampling.complete(params, engine)
    if endless:
        engine.prepare("a", params, endless=True)  # what is wrong is told at once
    remark(_HELP)
    first = [{"role": "system", "content": system}] if system else []
    messages = list(first)
    while (line := _read()) is not None:
        command = line.strip()
        if command == "/quit":
            break
        if command == "/reset":
            messages, shown = list(first), []
            remark("the conversation starts anew")
        elif command.startswith("/image "):
            shown += _picture(command.removeprefix("/image ").strip())
        elif command.startswith("/"):
            remark(f"{command.split()[0]} is unknown: {_HELP}")
        elif command:
            said = [*shown, {"type": "text", "text": line}] if shown else line
            shown = [] if _turn(engine, messages, said, params, endless) else shown


def _picture(named: str) -> list[dict[str, Any]]:
    # As parts of a message; none, with a remark, of a file that cannot be read.
    try:
        return o.pictures([Path(named)])
    except PacelineError as error:
        if not sys.stdin.isatty():
            raise
        remark(f"paceline: error: {error}")
        return []


def _read() -> str | None:
    terminal = sys.stdin.isatty()
    if terminal:
        with suppress(ImportError):
            import readline  # noqa: F401  (gives `input` editing and history)
    try:
        return input("> " if terminal else "")
    except (EOFError, KeyboardInterrupt):
        return None


def _turn(
    engine: Any, messages: list[dict[str, Any]], said: Any, params: SamplingParams, endless: bool
) -> bool:
    # A failed turn leaves `messages` as they were, and returns False.
    asked = [*messages, {"role": "user", "content": said}]
    shown = 0

    def show(event: Any) -> None:
        nonlocal shown
        shown += len(event.text)
        write(event.text)

    try:
        with interruptible() as interrupt:
            request = engine.add(asked, params, endless=endless)
            completion = follow(engine, request, interrupt, show)
    except PacelineError as error:
        if not sys.stdin.isatty():  # of a script, whose next lines build on this one
            raise
        write("\n" * bool(shown))
        advice = " (/reset starts anew)" if messages else ""
        remark(f"paceline: error: {error}{advice}")
        return False
    write(completion.text[shown:] + "\n")
    remark(summary(engine, completion))
    messages[:] = [*asked, {"role": "assistant", "content": completion.text}]
    if completion.finish_reason == "loop":
        remark("the answer repeated itself, so it was ended")
    limit = params.max_new_tokens
    if completion.finish_reason == "length" and len(completion.token_ids) < limit:
        remark("the context is full, so the answer was cut: /reset starts anew")
    return True
