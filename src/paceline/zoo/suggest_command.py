"""`paceline suggest`: several continuations of a text for the price of one (lossy)."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer

from paceline.cli import options as o
from paceline.cli.output import print_json, remark
from paceline.errors import PromptError


def suggest(
    prompt: Annotated[str, typer.Argument(help="The text so far, taken as it is.")],
    k: Annotated[int, typer.Option("--k", help="How many suggestions.")] = 3,
    tokens: Annotated[int, typer.Option(help="Length of each in tokens.")] = 10,
    alpha: Annotated[
        float | None,
        typer.Option(
            help="Weight of n-gram counts, 0 to 1. Default: 0.3 with --corpus, 0 without."
        ),
    ] = None,
    corpus: Annotated[
        Path | None,
        typer.Option(help="Text file that n-grams are counted in. Default: the prompt itself."),
    ] = None,
    model: o.Model = "smollm2-135m",
    runtime: o.Runtime = "torch",
    device: o.Device = None,
    precision: o.Precision = None,
    threads: o.Threads = None,
    max_context: o.MaxContext = None,
    as_json: o.AsJson = False,
) -> None:
    """Continue a text in several ways with one pass per token (superposed decoding).

    Lossy: all suggestions share their passes, so each is only close to what the model would write
    by itself.
    """
    checked = o.runtime_options(
        device=device, precision=precision, threads=threads, max_context=max_context
    )
    o.check_names(runtime)
    texts = [] if corpus is None else [_read(corpus)]

    from paceline.registry import loading
    from paceline.zoo.superposed import suggest

    loaded = loading.load_model(model, runtime=runtime, options=checked)
    engine = loading.make_engine(loaded, drafter="none", max_batch=1)
    found = suggest(engine, prompt, k=k, tokens=tokens, alpha=alpha, corpus=texts)
    if as_json:
        print_json(asdict(found))
        return
    for each in found.suggestions:
        typer.echo(f"{each.score:8.2f}  {each.text!r}")
    remark(f"{found.forwards} forwards for {len(found.suggestions)} suggestions; lossy")


def _read(path: Path) -> str:
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        reason = getattr(error, "strerror", None) or "not UTF-8 text"
        raise PromptError(f"cannot read {path} ({reason}): give a text file as --corpus") from error
    if not text.strip():
        raise PromptError(f"{path} is empty: give a text file as --corpus")
    return text
