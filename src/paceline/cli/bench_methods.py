"""`paceline bench methods`: every method in its paper's mode, beside the paper's claim."""

from __future__ import annotations

import time
from typing import Annotated

import typer

from paceline.cli import options as o
from paceline.cli.output import end, interruptible, remark, report
from paceline.errors import InvalidOption
from paceline.registry.options import Options


def methods(
    *,
    asked: Annotated[Options, o.Takes("model", *o.COMPUTE)],
    draft_model: Annotated[str | None, "Draft model; without one, eagle3 takes its place."] = None,
    given: Annotated[
        list[str] | None,
        typer.Option(
            "--with", help="Options of a line's method, as falcon:weights=FILE; repeatable."
        ),
    ] = None,
    only: Annotated[str, "Words by commas: systems or options that have one of them."] = "",
    skip: Annotated[str, "Likewise, what to leave out."] = "",
    batch: Annotated[int, "Of the column of batches."] = 8,
    limit: Annotated[int, "Prompts of a method that drafts."] = 6,
    max_new_tokens: Annotated[int, "Tokens of an answer."] = 64,
    minutes: Annotated[float | None, "Begin no line that would end later."] = None,
    listed: Annotated[bool, typer.Option("--list", help="Say what is missing or old.")] = False,
    out: o.Results = None,
    name: Annotated[str, "File in --out for lines that draft; others have their own."] = "methods",
    as_json: o.AsJson = False,
) -> None:
    """Measure every method in its paper's mode, beside the paper's claim.

    Drafters run by turns with plain decoding: with the draft sizes of the paper, with those that
    pay here, and with these in a batch and at the other temperature (greedy or 1). Samplers of a
    canvas run on the models that ship. What does not run says why. While others use the machine,
    no speed is measured.

    With --out each line is kept as soon as it is there, and only lines are measured that are
    missing, or older than code, settings or weights; what takes least comes first. Ctrl-C ends with
    what there is, and the same command goes on. The exit code is 1 if a method failed, or if a text
    differs from plain decoding that must not.
    """
    o.check_at_least_one(batch=batch, limit=limit, max_new_tokens=max_new_tokens)
    if out is not None and limit < 2:
        raise InvalidOption("an interval needs two prompts: give a higher --limit, or no --out")
    from paceline.lab.measure import claims, lines, results, systems
    from paceline.lab.measure.methods import with_options

    of: list[lines.Made] = [*with_options(claims.lines(), given or []), *claims.canvases()]
    about = lines.About(asked, draft_model, given or [], batch, limit, max_new_tokens)
    bench = lines.Lines(claims.chosen(of, _words(only), _words(skip)), about, out, name)
    begin = time.monotonic()
    with interruptible() as interrupt:
        for work in [] if listed else bench.left():
            if minutes is not None and time.monotonic() - begin + work.seconds > 60 * minutes:
                break
            remark(f"{work.line.system}, about {work.seconds:.0f} s")
            if not bench.make(work.line, lambda: interrupt.requested):
                break
    left = [(each.line.system, each.state, round(each.seconds)) for each in bench.left()]
    text = results.table(systems.COLUMNS, shown) if (shown := bench.table()) else ""
    text += results.table(("left", "why", "about seconds"), left) if left else ""
    found = {"complete": not left, "differing": bench.differing, "failed": bench.failed}
    report({**found, "cells": bench.cells, "left": left}, text, as_json=as_json)
    for system in bench.differing:
        remark(f"{system}: a text differs from plain decoding, which its rule does not allow")
    for system, error in bench.failed.items():
        remark(f"{system} failed: {error}")
    end(not interrupt, kept=out is not None)
    if bench.differing or bench.failed:
        raise typer.Exit(1)


def _words(text: str) -> list[str]:
    return [word for each in text.split(",") if (word := each.strip())]
