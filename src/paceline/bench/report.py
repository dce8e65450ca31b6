"""From records to rows: speed-ups over plain decoding and what explains them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from paceline.bench.run import Record
from paceline.metrics import GenerationStats

BASELINE = "none"
"""The drafter that all others are compared with."""

_RESAMPLES = 2000
_COLUMNS = (
    ("drafter", "drafter"),
    ("category", "category"),
    ("prompts", "prompts"),
    ("tokens_per_second", "tokens/s"),
    ("speedup", "speed-up"),
    ("interval", "90% interval"),
    ("block_efficiency", "tokens/forward"),
    ("rows_per_forward", "rows/forward"),
    ("draft_share", "drafting"),
    ("overhead_share", "overhead"),
    ("identical", "identical"),
)

Row = dict[str, Any]


def rows(records: Sequence[Record], lossless: Mapping[str, bool]) -> list[Row]:
    """A row per drafter and category, and per drafter over all prompts.

    Args:
        records: finished prompts, each with a run of the baseline.
        lossless: by drafter, whether its verifier promises the target's law.
    """
    categories = list(dict.fromkeys(record.category for record in records))
    out = []
    for drafter, promised in lossless.items():
        for category in ("all", *categories):
            chosen = [r for r in records if category in ("all", r.category)]
            if chosen:
                out.append({**_row(drafter, category, chosen), "lossless": promised})
    return out


def remarks(table: Sequence[Row]) -> list[str]:
    """What a reader of the rows should know."""
    out = []
    for row in table:
        if row["category"] == "all" and not row["lossless"]:
            out.append(f"{row['drafter']}: lossy, its verifier does not promise the target's law")
        if row["category"] == "all" and row["identical"] < 1:
            out.append(
                f"{row['drafter']}: {1 - row['identical']:.0%} of the texts differ from those of "
                f"{BASELINE}, so its speed-up compares different texts"
            )
    return out


def markdown(table: Sequence[Row]) -> str:
    """The rows as a table."""
    lines = [
        "| " + " | ".join(titles()) + " |",
        "|" + "---|" * len(_COLUMNS),
    ]
    lines += ["| " + " | ".join(cells(row)) + " |" for row in table]
    return "\n".join(lines) + "\n"


def plain(table: Sequence[Row]) -> str:
    """The rows as aligned text."""
    return aligned([titles(), *map(cells, table)])


def aligned(lines: Sequence[Sequence[str]]) -> str:
    """Lines of cells as text in columns."""
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    return "\n".join(
        "  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)).rstrip()
        for line in lines
    )


def titles() -> list[str]:
    """Titles of the table's columns."""
    return [title for _, title in _COLUMNS]


def cells(row: Row) -> list[str]:
    """One row, formatted for people, in the order of `titles`."""

    def number(name: str, pattern: str) -> str:
        value = row[name]
        return "-" if value is None else pattern.format(value)

    low, high = number("speedup_low", "{:.2f}"), number("speedup_high", "{:.2f}")
    formatted = {
        "drafter": row["drafter"],
        "category": row["category"],
        "prompts": str(row["prompts"]),
        "tokens_per_second": number("tokens_per_second", "{:.1f}"),
        "speedup": number("speedup", "{:.2f}"),
        "interval": f"{low} to {high}",
        "block_efficiency": number("block_efficiency", "{:.2f}"),
        "rows_per_forward": number("rows_per_forward", "{:.1f}"),
        "draft_share": number("draft_share", "{:.1%}"),
        "overhead_share": number("overhead_share", "{:.1%}"),
        "identical": number("identical", "{:.0%}"),
    }
    return [formatted[key] for key, _ in _COLUMNS]


def _row(drafter: str, category: str, records: Sequence[Record]) -> Row:
    mine, base = _total(records, drafter), _total(records, BASELINE)
    speedup = _ratio(mine.tokens_per_second, base.tokens_per_second)
    low, high = _interval(records, drafter)
    same = [r.runs[drafter].token_ids == r.runs[BASELINE].token_ids for r in records]
    return {
        "drafter": drafter,
        "category": category,
        "prompts": len(records),
        "tokens_per_second": mine.tokens_per_second,
        "speedup": speedup,
        "speedup_low": low,
        "speedup_high": high,
        "block_efficiency": mine.block_efficiency,
        "rows_per_forward": mine.rows_per_forward,
        "acceptance_by_depth": mine.acceptance_by_depth,
        "draft_share": mine.draft_share,
        "overhead_share": mine.overhead_share,
        "identical": sum(same) / len(same),
    }


def _total(records: Sequence[Record], drafter: str) -> GenerationStats:
    total = GenerationStats()
    for record in records:
        total.add(record.runs[drafter].stats)
    return total


def _interval(records: Sequence[Record], drafter: str) -> tuple[float | None, float | None]:
    """Bootstrap 90% interval of the speed-up over prompts."""
    figures = np.array(
        [
            [figure for name in (drafter, BASELINE) for figure in _figures(record, name)]
            for record in records
        ]
    )
    picks = np.random.default_rng(0).integers(0, len(records), (_RESAMPLES, len(records)))
    tokens, seconds, base_tokens, base_seconds = figures[picks].sum(axis=1).T
    usable = (seconds > 0) & (base_tokens > 0)
    if not usable.any():
        return None, None
    ratios = (tokens * base_seconds)[usable] / (seconds * base_tokens)[usable]
    low, high = np.quantile(ratios, [0.05, 0.95])
    return float(low), float(high)


def _figures(record: Record, drafter: str) -> tuple[float, float]:
    stats = record.runs[drafter].stats
    return stats.committed_tokens, stats.decode_seconds


def _ratio(a: float, b: float) -> float | None:
    return a / b if b else None
