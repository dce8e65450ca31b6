"""From records to rows: speed-ups over plain decoding and what explains them."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np

from paceline.core.cache import write_atomically
from paceline.core.metrics import GenerationStats
from paceline.errors import InvalidOption
from paceline.measure.machine import dumps
from paceline.measure.run import Record

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


# The directory of a bench:

_RAW = "prompts.jsonl"
_RESUMED = "resumed_after"


class Store:
    """`prompts.jsonl`: the settings on the first line, then a record per finished prompt, and a
    line wherever the bench was taken up again."""

    def __init__(self, directory: Path, settings: Mapping[str, Any]) -> None:
        """Open a directory, new or left by a run with the same settings.

        Raises:
            InvalidOption: the directory cannot be written, or holds a run with other settings.
        """
        self._path = directory / _RAW
        self._directory = directory
        self.records: list[Record] = []
        """Prompts that an earlier run finished, in the order of that run."""
        self.resumed_after: list[int] = []
        """How many prompts were finished each time that the bench was taken up again."""
        self._appended = False
        plain = json.loads(dumps(settings))
        with _writing(directory):
            directory.mkdir(parents=True, exist_ok=True)
            good = self._read(plain)
            # A line cut short by a crash is dropped here, and its prompt is decoded again.
            write_atomically(self._path, "".join(line + "\n" for line in good))

    def append(self, records: Sequence[Record]) -> None:
        """Keep records that were just finished; InvalidOption if the disk refuses."""
        lines = [dumps(record.as_dict()) for record in records]
        if self.records and not self._appended:
            self.resumed_after.append(len(self.records))
            lines.insert(0, dumps({_RESUMED: len(self.records)}))
        self._appended = True
        with _writing(self._directory), self._path.open("a", encoding="utf-8") as file:
            file.write("".join(line + "\n" for line in lines))

    def finish(self, files: Mapping[str, str]) -> None:
        """Write texts by name of file, each whole or not at all; InvalidOption as for `append`."""
        with _writing(self._directory):
            for name, text in files.items():
                write_atomically(self._directory / name, text)

    def _read(self, settings: Mapping[str, Any]) -> list[str]:
        """Lines to keep; fills `records`."""
        header = dumps({"settings": settings})
        if not self._path.exists():
            return [header]
        lines = self._path.read_text(encoding="utf-8").split("\n")
        try:
            earlier = json.loads(lines[0])["settings"]
            different = sorted(
                key for key in settings.keys() | earlier if settings.get(key) != earlier.get(key)
            )
        except (IndexError, ValueError, KeyError, TypeError, AttributeError) as error:
            raise InvalidOption(
                f"{self._path} is not a bench's: give another --out or remove it"
            ) from error
        if different:
            raise InvalidOption(
                f"{self._directory} holds a bench with other settings ({', '.join(different)}): "
                "give another --out, or the same settings to resume"
            )
        good = [header]
        for line in lines[1:]:
            try:
                entry = json.loads(line)
                if _RESUMED in entry:
                    self.resumed_after.append(int(entry[_RESUMED]))
                else:
                    self.records.append(Record.from_dict(entry))
            except (ValueError, KeyError, TypeError, AttributeError):
                continue
            good.append(line)
        return good


@contextmanager
def _writing(directory: Path) -> Iterator[None]:
    """Turn errors of the file system into one line."""
    try:
        yield
    except OSError as error:
        reason = error.strerror or str(error)
        raise InvalidOption(
            f"cannot write to {directory} ({reason}): give another --out"
        ) from error
