"""Tables of several reports: what stands in each cell, and what is left out."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

from benchmarks.peers.summary import summary_tables

from paceline.lab.audit.report import DistributionTest, GreedyTexts, Report
from paceline.lab.measure.machine import dumps

SAME = GreedyTexts("a", 8, None, None, None, None, None, True)
TIE = GreedyTexts("b", 8, 3, 5, 6, 0.25, "engine", True)
FAR = GreedyTexts("c", 8, 0, 5, 6, 2.0, "referee", True)
SHORT = GreedyTexts("d", 8, 7, None, 6, None, None, True)
FIRST = DistributionTest(
    "p", "first token", 50, 1, 0.4, 0.9, "token 1", 0.1, {"80%": 0.2, "90%": 0.25}
)
PAIRED = DistributionTest(
    "p", "sequences", 50, 4, 0.001, 0.002, "prefix 2", 0.3, {"80%": 0.3, "90%": 0.35}
)
WHOLE = Report(
    {"engine": "e", "version": "1.2", "accepted drafts": "7 of 90 tokens"},
    {},
    (SAME, TIE, FAR, SHORT),
    (FIRST, PAIRED),
    0.01,
    0.5,
)


def found(report: Report) -> Any:
    """As it comes back from a file."""
    return json.loads(dumps(report.as_dict()))


def rows(text: str) -> list[list[str]]:
    return [
        [cell.strip() for cell in line.strip("|").split("|")]
        for line in text.splitlines()
        if line.startswith("|") and not line.startswith("| ---")
    ]


def test_a_report_fills_a_row_of_each_table() -> None:
    _, greedy, _, distributions = rows(summary_tables({"one": found(WHOLE)}))
    assert greedy == ["one", "1.2", "1 of 4", "0.25, 2.00, 1 unknown", "1 of 3"]
    assert distributions == [
        *("one", "7 of 90 tokens", "0.9", "0.002", "0.30 at prefix 2"),
        *("0.30", "0.35", "**differ**"),
    ]


def test_what_was_not_tested_leaves_a_dash_and_hopeless_power_is_told() -> None:
    blind = replace(PAIRED, adjusted=0.5, detectable={"80%": 0.4, "90%": None})
    quiet = replace(WHOLE, about={"lossless": "False"}, greedy=(SAME,), distributions=(blind,))
    _, greedy, _, distributions = rows(summary_tables({"one": found(quiet)}))
    dash = "\N{EN DASH}"
    assert greedy == ["one (lossy)", dash, "1 of 1", dash, dash]
    assert distributions == [
        *("one (lossy)", "unknown", dash, "0.5", "0.30 at prefix 2"),
        *("0.40", "none", "no difference found"),
    ]


def test_tables_without_rows_are_left_out_and_failures_are_listed() -> None:
    text = summary_tables({"one": {"failed": "engine 'one' died"}})
    assert rows(text) == []
    assert text.endswith("- `one`: engine 'one' died")
    assert len(rows(summary_tables({"one": found(replace(WHOLE, greedy=()))}))) == 2
