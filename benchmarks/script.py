"""What scripts of this folder end with: a table or JSON, a record, one line for what went wrong."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from paceline.errors import PacelineError
from paceline.lab.measure import results
from paceline.lab.measure.machine import Others, dumps
from paceline.lab.measure.report import aligned

DATA = Path("docs/results/data")
GOES_ON = "what is measured is in {out}: the same command goes on"
"""What Ctrl-C says where a script keeps what it has."""
BUSY = "Other processes took much of the machine meanwhile: times are not those of a quiet one."


@dataclass(frozen=True, kw_only=True)
class Findings:
    """What a script found: what `results.record` takes, and how it is told.

    Attributes:
        data: what `--json` prints; None stands for the rows, by column.
        shown: what is printed in place of table and note; "" where it is printed already.
        timed: whether it has times, of this process and its children, so that it is told if
            others were at work.
        code: the exit code.
    """

    title: str
    topic: str
    command: str
    columns: Sequence[str]
    rows: Sequence[Sequence[results.Cell]]
    note: str | None = None
    figures: Mapping[str, results.Cell] | None = None
    data: Any = None
    shown: str | None = None
    timed: bool = False
    code: int = 0

    def json(self) -> str:
        """Return `data` as strict JSON."""
        rows = [dict(zip(self.columns, row, strict=True)) for row in self.rows]
        return dumps(rows if self.data is None else self.data, indent=1)

    def text(self) -> str:
        """Return the table and its note, or `shown`."""
        if self.shown is not None:
            return self.shown
        cells = (["-" if cell is None else str(cell) for cell in row] for row in self.rows)
        return "\n".join([aligned([list(self.columns), *cells]), *filter(None, [self.note])])


def add_output(parser: argparse.ArgumentParser) -> None:
    """Add the options by which findings are told."""
    parser.add_argument("--record", metavar="NAME", help="also write docs/results/data/NAME.json")
    parser.add_argument("--json", action="store_true", help="print results as JSON")


def run_script(
    parser: argparse.ArgumentParser,
    measure: Callable[[argparse.Namespace], Findings | int | None],
    argv: Sequence[str] | None = None,
    *,
    stopped: str = "stopped",
    faults: tuple[type[Exception], ...] = (),
) -> int:
    """Read the command line, measure, print and record.

    Args:
        measure: gives findings, or an exit code once it has told them itself; None is 0.
        stopped: what Ctrl-C prints, with options in braces.
        faults: exceptions that are one line, beside those of paceline and of files.

    Returns:
        The exit code: that of the findings, 1 if they are empty, 2 after one line on standard
        error, 130 after Ctrl-C.
    """
    given, others = parser.parse_args(argv), Others()
    try:
        found = measure(given)
        if not isinstance(found, Findings):
            return found or 0
        note = found.note
        if found.timed and others.busy:
            print(BUSY, file=sys.stderr)
            note = " ".join(filter(None, [note, BUSY]))
        if told := found.json() if given.json else found.text():
            print(told)
        if given.record is not None and found.rows:
            results.record(
                DATA / f"{given.record}.json",
                found.title,
                found.topic,
                found.command,
                found.columns,
                found.rows,
                note,
                found.figures,
            )
        return found.code or int(not found.rows)
    except (PacelineError, OSError, *faults) as error:
        print(f"paceline: error: {error}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print(stopped.format(**vars(given)), file=sys.stderr)
        return 130
