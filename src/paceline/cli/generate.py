"""`paceline generate`: one prompt, its text as it becomes final, and the figures."""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import asdict, replace
from functools import partial
from pathlib import Path
from typing import Annotated, Any

import typer

from paceline.cli import options as o
from paceline.cli.output import (
    Film,
    Painter,
    follow,
    interruptible,
    print_json,
    remark,
    summary,
    telling,
    told,
    write,
)
from paceline.core.cache import read_text
from paceline.core.options import check_text, within
from paceline.core.types import Denoising, SamplingParams
from paceline.errors import InvalidOption, PromptError
from paceline.registry import table as registry
from paceline.registry.options import Options


@o.spread_options
def generate(
    prompt: Annotated[str, typer.Argument(help="The prompt; - reads it from standard input.")],
    *,
    asked: Annotated[Options, o.Takes(*o.MODEL, *o.SPECULATION, *o.CANVAS, *o.LIMITS, *o.CHATS)],
    ending: Annotated[
        str,
        typer.Option(
            help="A filled end token of a canvas does nothing before its turn (fill), cuts the "
            "canvas (cut), or is banned but at the first masked place (hold)."
        ),
    ] = "fill",
    show_steps: Annotated[
        bool, typer.Option("--show-steps", help="Show the canvas as it fills, on a terminal live.")
    ] = False,
    max_new_tokens: o.MaxNewTokens = 256,
    sampling: o.SamplingOptions,
    presence_penalty: o.PresencePenalty = 0.0,
    frequency_penalty: o.FrequencyPenalty = 0.0,
    seed: o.Seed = 0,
    stop: o.Stop = None,
    ignore_eos: o.IgnoreEos = False,
    stop_loops: o.StopLoops = False,
    logprobs: Annotated[
        int | None, typer.Option(help="With --json: log-probabilities, and of so many others.")
    ] = None,
    system: o.System = None,
    raw: Annotated[
        bool, typer.Option("--raw", help="No chat template; a begin token as the model asks.")
    ] = False,
    json_schema: Annotated[
        str | None, typer.Option(help="The text is JSON by this schema: a file, or JSON itself.")
    ] = None,
    regex: Annotated[str | None, typer.Option(help="The whole text matches this pattern.")] = None,
    grammar: Annotated[
        Path | None, typer.Option(help="The text is of this grammar: FILE.lark or FILE.gbnf.")
    ] = None,
    as_json: o.AsJson = False,
    first_of: Annotated[
        int,
        typer.Option(
            help="Decode so many samples together; the shortest that ends wins. Lossy: favours "
            "short texts."
        ),
    ] = 1,
    color: Annotated[
        bool, typer.Option("--color", help="Colour tokens by who drafted them.")
    ] = False,
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
    denoising = Denoising(ending=ending, steps=show_steps)  # type: ignore[arg-type]
    check_text("--system", system)
    constrain = _constraint(json_schema, regex, grammar)
    several = {
        "--temperature 0, the default": params.greedy,
        "--color": color,
        "a constraint": constrain is not None,
        "--show-steps": show_steps,
        f"--ending {ending}": ending != "fill",
    }
    for first, others in (
        ("--first-of", several if first_of > 1 else {}),
        ("--raw", {"--system": raw and system}),
        ("--json", {"--color": as_json and color}),
    ):
        for second, wrong in others.items():
            if wrong:
                raise InvalidOption(f"{first} does not go with {second}: leave out one of the two")
    if logprobs is not None and not as_json:
        raise InvalidOption("--logprobs are printed with --json alone: give both")
    asked.check()
    text = _read(prompt, raw)

    from paceline.engine.engine import Event

    with telling(asked.model):
        engine, _ = o.load(replace(asked, max_batch=first_of))
    params = sampling.complete(params, engine)
    denoise = None if denoising == Denoising() else denoising
    film = Film(engine, live=not as_json) if show_steps else None
    painter = Painter(engine.tokenizer) if color else None
    shown = 0

    def show(event: Event) -> None:
        nonlocal shown
        if film is not None:
            film.show(event)
            return
        shown += len(event.text)
        if painter is not None:
            write(painter.paint(event.text, event.token_ids, event.sources))
        elif event.text:
            write(event.text)

    found = None
    with interruptible() as interrupt:
        if first_of > 1:
            cancelled = partial(bool, interrupt)
            first_finish = registry.find("decoder", "first-finish").load()
            found = first_finish(
                engine, text, first_of, params, interrupt=cancelled, raw=raw, system=system
            )
            completion = found.completion
        else:
            constraint = None if constrain is None else constrain(engine)
            given = {"raw": raw, "system": system, "constraint": constraint}
            request = engine.add(text, params, **given, denoising=denoise)
            quiet = as_json and film is None
            completion = follow(engine, request, interrupt, (lambda _: None) if quiet else show)
    if as_json:
        config = {**engine.config, **asdict(params), "system": system, "raw": raw}
        report = _report(engine, completion, config)
        if film is not None:
            report["steps"] = film.steps
        if found is not None:
            config["lossless"] = found.lossless
            report["first_of"] = _samples(found)
        print_json(report)
    else:
        if film is not None:
            film.end()
        write(completion.text[shown:] + "\n")
        if painter is not None:
            typer.echo(painter.legend(), err=True, color=True)
        remark(summary(engine, completion))
        if found is not None:
            remark(
                f"sample {found.index + 1} of {first_of} (seed {found.seed}), {found.total_tokens} "
                "tokens in all; lossy: favours short texts"
            )
    if interrupt:
        raise typer.Exit(130)


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


def _constraint(
    json_schema: str | None, regex: str | None, grammar: Path | None
) -> Callable[[Any], Any] | None:
    # What makes the constraint once there is an engine. Files are read at once.
    if sum(each is not None for each in (json_schema, regex, grammar)) > 1:
        raise InvalidOption("give one of --json-schema, --regex and --grammar")
    check_text("--regex", regex)
    if regex is not None:
        return lambda engine: engine.grammar.regex(regex)
    if json_schema is not None:
        inline = json_schema.lstrip()[:1] in ("{", "[") or json_schema in ("true", "false")
        schema = json_schema if inline else _file(Path(json_schema))
        check_text("--json-schema", schema)
        return lambda engine: engine.grammar.json_schema(schema)
    if grammar is None:
        return None
    if grammar.suffix not in (".lark", ".gbnf"):
        raise InvalidOption(f"--grammar takes FILE.lark or FILE.gbnf, not {grammar}")
    rules = _file(grammar)
    return lambda engine: getattr(engine.grammar, grammar.suffix[1:])(rules)


def _file(path: Path) -> str:
    return read_text(path, f"{path} cannot be read as a text file", "name another")


def _report(engine: Any, completion: Any, config: dict[str, Any]) -> dict[str, Any]:
    report = {
        "text": completion.text,
        "token_ids": completion.token_ids,
        "prompt_tokens": completion.prompt_tokens,
        "finish_reason": completion.finish_reason,
        "config": config,
        "drafting": told(engine),
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


def _samples(found: Any) -> dict[str, Any]:
    return {
        "index": found.index,
        "seed": found.seed,
        "samples": [
            {"tokens": len(each.token_ids), "finish_reason": each.finish_reason}
            for each in found.samples
        ],
    }


def _entry(engine: Any, token: int, logprob: float) -> dict[str, Any]:
    text = engine.tokenizer.decode([token], skip_special=False)
    return {"token_id": token, "text": text, "logprob": logprob}
