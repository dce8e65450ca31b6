"""`paceline bench methods`: every method in its paper's mode, beside the paper's claim."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from paceline.cli import options as o
from paceline.cli.output import end, interruptible, progress_bar, remark, report
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
    batch: Annotated[int, "Of the second column of speed-ups."] = 8,
    limit: Annotated[int, "Prompts of a method."] = 6,
    max_new_tokens: Annotated[int, "Tokens of an answer."] = 64,
    out: o.Results = None,
    record: o.Record = None,
    as_json: o.AsJson = False,
) -> None:
    """Measure every method in its paper's mode, beside the paper's claim.

    Each runs by turns with plain decoding: with the draft sizes of its paper, with those that pay
    here, and with these in a batch and at the other temperature (greedy or 1). What does not run
    on the model says why. Ctrl-C ends with what there is; with --out the same command goes on. The
    exit code is 1 if a method failed, or if a text differs from plain decoding that must not.
    """
    o.check_at_least_one(batch=batch, limit=limit, max_new_tokens=max_new_tokens)
    from paceline.lab.measure import methods as bench
    from paceline.lab.measure import results
    from paceline.lab.measure.kept import Kept
    from paceline.lab.measure.machine import machine
    from paceline.registry import loading

    lines = bench.chosen(_words(only), _words(skip), given or [])
    loaded = loading.load_model(asked)
    about: dict[str, Any] = {
        "model": loaded.source.name,
        "fingerprint": loaded.source.fingerprint,
        "runtime": loaded.target.capabilities.runtime,
        "draft_model": draft_model,
        "with": given or [],
        "batch": batch,
        "limit": limit,
        "max_new_tokens": max_new_tokens,
        "machine": machine(),
    }
    wanted = bench.cells(lines, sorted({1, batch}))
    systems = {line.system: line for line in lines}
    with (
        Kept(out and out / "cells.jsonl", about, bench.read_cell) as kept,
        progress_bar("{task.completed:.0f}/{task.total:.0f}") as bar,
        interruptible() as interrupt,
    ):
        # What did not run is tried again: weights may have come since.
        found = {cell: each for cell, each in dict(kept.entries).items() if "error" not in each}
        left = [cell for cell in wanted if cell not in found]
        task = bar.add_task("methods", total=len(left))
        for cell in left:
            figures = bench.measure(
                loaded,
                systems[cell.system],
                cell,
                draft_model=draft_model,
                limit=limit,
                tokens=max_new_tokens,
                stop=lambda: interrupt.requested,
            )
            if figures is None:
                break
            found[cell] = figures
            kept.append({"cell": cell, "figures": figures})
            bar.advance(task)
    shown = {cell: found[cell] for cell in wanted if cell in found}
    table = bench.rows(lines, shown, draft_model is not None)
    verdict = bench.verdict(lines, shown)
    summary = {"about": about, "complete": len(shown) == len(wanted), **verdict}
    text = f"# Methods on {loaded.source.name}\n\n" + results.table(bench.TITLES, table)
    if out is not None:
        kept.finish(summary, text, bench.page(about, table))
        remark(f"results.json, results.md and report.html are in {out}")
    if record is not None:
        bench.record(record, about, table)
    report(summary, text, as_json=as_json)
    for name in verdict["differing"]:
        remark(f"{name}: a text differs from plain decoding, which its rule does not allow")
    for name, error in verdict["failed"].items():
        remark(f"{name} failed: {error}")
    end(not interrupt, kept=out is not None)
    if verdict["differing"] or verdict["failed"]:
        raise typer.Exit(1)


def _words(text: str) -> list[str]:
    return [word for each in text.split(",") if (word := each.strip())]
