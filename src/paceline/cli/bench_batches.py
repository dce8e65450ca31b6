"""`paceline bench batches`: what twice the batch does to speed-up and throughput."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from paceline.cli import options as o
from paceline.cli.output import report


def batches(
    benches: Annotated[
        list[Path],
        typer.Argument(help="Folders of paceline bench --batch B --out; one or more for each B."),
    ],
    *,
    record: o.Record = None,
    as_json: o.AsJson = False,
) -> None:
    """Fit speed-up and tokens per second over batch size, a + b log2 B.

    The benches are alike but for --batch, of which three are needed. Intervals are 90%, by
    bootstrap of the residuals. No law is meant beyond its points.
    """
    from paceline.lab.measure import batch_law, results

    read = batch_law.read(benches)
    found = batch_law.laws(read)
    columns, rows = batch_law.table(found)
    about = read[0]["settings"]
    if record is not None:
        sizes = sorted({bench["settings"]["batch"] for bench in read})
        names = "model", "limit", "max_new_tokens", "nodes", "depth", "threads"
        options = "".join(
            f"--{name.replace('_', '-')} {about[name]} " for name in names if about.get(name)
        )
        ends = "--ignore-eos " * bool(about.get("ignore_eos"))
        command = (
            f"paceline bench {options}{ends}--drafters {','.join(about['drafters'][1:])} "
            f"--batch B --out B   # B = {', '.join(map(str, sizes))}\n"
            f"paceline bench batches {' '.join(map(str, sizes))}"
        )
        title = f"Speed-up over batch size, {about['model']}"
        results.record(record, title, "batching", command, columns, rows)
    figures = {"settings": about, "laws": [law.as_dict() for law in found]}
    report(figures, results.table(columns, rows), as_json=as_json)
