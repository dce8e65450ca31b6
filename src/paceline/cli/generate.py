"""`paceline generate`: one prompt, its text as it becomes final, and the figures."""

from __future__ import annotations

import sys
from dataclasses import asdict, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from paceline.cli import options as o
from paceline.cli.output import (
    CanvasSteps,
    Screen,
    SourceColours,
    follow,
    interruptible,
    print_json,
    remark,
    summary,
    telling,
)
from paceline.core.options import check_text, within
from paceline.core.types import CanvasParams, SamplingParams
from paceline.errors import InvalidOption, PromptError
from paceline.models.grammar import constraint_of
from paceline.registry import table as registry
from paceline.registry.options import Options

if TYPE_CHECKING:
    from paceline.engine.engine import Event


def generate(
    prompt: Annotated[str, typer.Argument(help="The prompt; - reads it from standard input.")],
    *,
    asked: Annotated[Options, o.Takes(*o.MODEL, *o.SPECULATION, *o.CANVAS, *o.LIMITS, *o.CHATS)],
    ending: Annotated[
        str,
        "A filled end token of a canvas does nothing before its turn (fill), cuts the "
        "canvas (cut), or is banned but at the first masked place (hold).",
    ] = "fill",
    prompt_rows: Annotated[
        str, "Of a canvas with blocks: the prompt sees its blocks, or is causal (DiDA)."
    ] = "blocks",
    show_steps: Annotated[bool, "Show the canvas as it fills, on a terminal live."] = False,
    max_new_tokens: o.MaxNewTokens = 256,
    sampling: o.SamplingOptions,
    presence_penalty: o.PresencePenalty = 0.0,
    frequency_penalty: o.FrequencyPenalty = 0.0,
    seed: o.Seed = 0,
    stop: o.Stop = None,
    ignore_eos: o.IgnoreEos = False,
    stop_loops: o.StopLoops = False,
    endless: o.Endless = False,
    logprobs: Annotated[
        int | None, "With --json: log-probabilities, and of so many others."
    ] = None,
    image: o.Image = None,
    system: o.System = None,
    raw: Annotated[bool, "No chat template; a begin token as the model asks."] = False,
    json_schema: Annotated[
        str | None, "The text is JSON by this schema: a file, or JSON itself."
    ] = None,
    regex: Annotated[str | None, "The whole text matches this pattern."] = None,
    grammar: Annotated[Path | None, "The text is of this grammar: FILE.lark or FILE.gbnf."] = None,
    as_json: o.AsJson = False,
    first_of: Annotated[
        int,
        "Decode so many samples together; the shortest that ends wins. Lossy: favours short texts.",
    ] = 1,
    color: Annotated[bool, "Colour tokens by who drafted them."] = False,
) -> None:
    """Generate text for a prompt, streaming it as it becomes final."""
    params = SamplingParams(
        **sampling.given(),
        presence_penalty=presence_penalty,
        frequency_penalty=frequency_penalty,
        seed=seed,
        max_new_tokens=max_new_tokens,
        stop=tuple(stop or ()),
        ignore_eos=ignore_eos,
        stop_loops=stop_loops,
        logprobs=logprobs,
    )
    within("--first-of", first_of, 1, 1024)
    asks = {"ending": ending, "prompt_rows": prompt_rows}
    denoising = CanvasParams(**asks, steps=show_steps)  # type: ignore[arg-type]
    check_text("--system", system)
    constrain = constraint_of(json_schema, regex, grammar)
    several = {
        "--temperature 0, the default": params.greedy,
        "--color": color,
        "a constraint": constrain is not None,
        "--show-steps": show_steps,
        f"--ending {ending}": ending != "fill",
        f"--prompt-rows {prompt_rows}": prompt_rows != "blocks",
    }
    for first, others in (
        ("--first-of", several if first_of > 1 else {}),
        ("--raw", {"--system": raw and system, "--image": raw and image}),
        ("--json", {"--color": as_json and color}),
    ):
        for second, wrong in others.items():
            if wrong:
                raise InvalidOption(f"{first} does not go with {second}: leave out one of the two")
    if logprobs is not None and not as_json:
        raise InvalidOption("--logprobs are printed with --json alone: give both")
    asked.check()
    text = _read(prompt, raw)
    shown = o.pictures(image or ())

    with telling(asked.model):
        engine, _ = o.load(replace(asked, max_batch=first_of))
    params = sampling.complete(params, engine)
    steps = CanvasSteps(engine, live=not as_json) if show_steps else None
    screen = Screen(SourceColours(engine.tokenizer) if color else None)
    show = steps.show if steps is not None else _nothing if as_json else screen.show
    given: dict[str, Any] = {"raw": raw, "system": system, "endless": endless}
    asking: Any = text
    if shown:
        given["system"] = None
        before = [{"role": "system", "content": system}] if system else []
        content = [*shown, {"type": "text", "text": text}]
        asking = [*before, {"role": "user", "content": content}]
    found = None
    with interruptible() as interrupt:
        if first_of > 1:
            search = registry.find("decoder", "first-finish").load()
            cancelled = partial(bool, interrupt)
            found = search(engine, asking, first_of, params, interrupt=cancelled, **given)
            completion = found.completion
        else:
            given["constraint"] = constrain and constrain(engine.grammar)
            denoise = None if denoising == CanvasParams() else denoising
            request = engine.add(asking, params, **given, denoising=denoise)
            completion = follow(engine, request, interrupt, show)
    if as_json:
        config = {
            **engine.config,
            **asdict(params),
            "system": system,
            "raw": raw,
            "endless": endless,
        }
        report = _report(engine, completion, config)
        if steps is not None:
            report["steps"] = steps.steps
        if found is not None:
            config["lossless"] = found.lossless
            report["first_of"] = found.as_dict()
        print_json(report)
    else:
        if steps is not None:
            steps.end()
        screen.end(completion.text)
        remark(summary(engine, completion))
        if found is not None:
            remark(found.told())
    if interrupt:
        raise typer.Exit(130)


def _nothing(_: Event) -> None: ...


def _read(prompt: str, raw: bool) -> str:
    # Checked before a model is loaded for it.
    try:
        text = sys.stdin.buffer.read().decode("utf-8") if prompt == "-" else prompt
    except UnicodeError as error:
        raise PromptError("the prompt is no UTF-8 text: convert it first") from error
    check_text("the prompt", text, PromptError)  # of arguments that were not UTF-8
    if not (text if raw else text.strip()):
        raise PromptError("the prompt is empty: give some text")
    return text


def _report(engine: Any, completion: Any, config: dict[str, Any]) -> dict[str, Any]:
    report = {
        "text": completion.text,
        "token_ids": completion.token_ids,
        "prompt_tokens": completion.prompt_tokens,
        "finish_reason": completion.finish_reason,
        "config": config,
        "drafting": engine.decoder.notes(),
        "stats": completion.stats.as_dict(),
    }
    if config["logprobs"] is not None:
        report["logprobs"] = [
            {
                **_entry(engine, each.token_id, each.logprob),
                "top": [_entry(engine, *other) for other in each.top],
            }
            for each in completion.logprobs
        ]
    return report


def _entry(engine: Any, token: int, logprob: float) -> dict[str, Any]:
    text = engine.tokenizer.decode([token], skip_special=False)
    return {"token_id": token, "text": text, "logprob": logprob}
