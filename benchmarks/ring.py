"""What ranks send for attention over keys that they share, by heads, and how far results are apart.

    python -m benchmarks.ring --record ring

Rows of a layer lie on four ranks, of which each holds its keys. *keys* sends keys and values round
(ring attention), *queries* sends queries round and results back (TokenRing); *ordered* sums in the
order of keys. Bytes are counted, of a row and a round, in float32, by a group of heads that share
keys, times the groups; time is not measured.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence

import numpy as np
from benchmarks.script import Findings, add_output, run_script

from paceline.core.types import LogitArray
from paceline.lab.measure import results
from paceline.methods.ring import Ring, Sent
from paceline.runtimes.reference.arithmetic import CHUNK

SHAPES = {
    "Llama 2 7B": (32, 32, 128),
    "SmolLM2 135M": (9, 3, 64),
    "Qwen2.5 1.5B": (12, 2, 128),
    "Gemma 3 270M": (4, 1, 256),
}
"""Heads, heads of keys, and their width."""

WAYS: list[tuple[Sent, bool]] = [
    ("keys", False),
    ("keys", True),
    ("queries", False),
    ("queries", True),
]
COLUMNS = ("heads of", "sent", "round", "back", "busiest, beside keys", "differs, ulps")
RANKS = 4


def rows_of(heads: int, width: int) -> list[LogitArray]:
    """Draw rows of a layer with one head of keys: queries that are scaled, keys and values."""
    rng = np.random.default_rng(heads)
    shapes = [(RANKS * CHUNK, each, width) for each in (heads, 1, 1)]
    queries, keys, values = (rng.standard_normal(shape).astype(np.float32) for shape in shapes)
    return [queries * np.float32(width**-0.5), keys, values]


def apart(found: LogitArray, expected: LogitArray) -> float:
    """The largest difference, in units of the last place of the largest value of its head."""
    place = np.spacing(np.abs(expected).max(axis=-1, keepdims=True))
    return float((np.abs(found - expected) / place).max())


def measure(names: Sequence[str]) -> list[list[results.Cell]]:
    """Return the rows of the table."""
    table: list[list[results.Cell]] = []
    for name in names:
        heads, groups, width = SHAPES[name]
        given = rows_of(heads // groups, width)
        ring = Ring(*given, RANKS, zigzag=False)
        exact = ring.run("keys", ordered=True)
        sent = {}
        for send, ordered in WAYS:
            found = ring.run(send, ordered=ordered, seed=1)
            counts = groups * ring.sent.sum(axis=0) / (len(given[0]) * (RANKS - 1))
            sent[send, ordered] = counts.max()
            table.append(
                [
                    name,
                    f"{send}, ordered" if ordered else send,
                    round(float(counts[0])),
                    round(float(counts[1])),
                    round(float(sent[send, ordered] / sent["keys", False]), 2),
                    round(apart(found, exact), 1),
                ]
            )
            print(*table[-1], file=sys.stderr, flush=True)
    return table


def findings(given: argparse.Namespace) -> Findings:
    """Measure, and put it as a table."""
    rows = measure(given.shapes)
    by = {(row[0], row[1]): row[4] for row in rows}
    return Findings(
        title=f"Attention over {RANKS} ranks: bytes by what goes round",
        topic="long-context",
        command=f"python -m benchmarks.ring --record {given.record}",
        columns=COLUMNS,
        rows=rows,
        note="Bytes of a row and a round, float32. Ordered, results are the engine's to the bit; "
        "else they differ by so much, by who came first.",
        figures={
            f"busiest direction, queries beside keys, {name}": by[name, "queries"]
            for name in ("Llama 2 7B", "Qwen2.5 1.5B")
            if name in given.shapes
        },
    )


def main(argv: Sequence[str] | None = None) -> int:
    """Count, print a table or JSON, and write --record."""
    parser = argparse.ArgumentParser(prog="ring", description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--shapes", nargs="+", default=list(SHAPES), choices=list(SHAPES))
    add_output(parser)
    return run_script(parser, findings, argv)


if __name__ == "__main__":
    sys.exit(main())
