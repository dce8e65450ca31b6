"""From turns to rows: tokens per second, ratios to the best of the peers, identity of texts."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
from benchmarks.peers.batches import texts
from benchmarks.peers.timing import Configuration, Turn

from paceline.lab.audit.engine import Timing

Row = dict[str, Any]


def speed(timing: Timing) -> float:
    """Tokens per second after the first ones; zero where no time passed."""
    seconds = timing.seconds - timing.first_seconds
    return (len(timing.tokens) - timing.first_tokens) / seconds if seconds > 0 else 0.0


def rows(
    turns: Sequence[Turn],
    configurations: Sequence[Configuration],
    batch: int = 1,
    measured: Callable[[Timing], float] | None = None,
) -> list[Row]:
    """A row for every configuration with a sample; `batch` texts were made together.

    Ratios are medians of ratios within a turn: a machine's slow minute is in both numbers. What
    is compared is `speed`, or `measured`.
    """
    figure = measured or speed
    speeds = {
        each.name: {
            (turn.round, turn.prompt): figure(turn.timings[each.name])
            for turn in turns
            if each.name in turn.timings
        }
        for each in configurations
    }
    present = [each for each in configurations if speeds[each.name]]
    peers = [each for each in present if each.peer]
    best_plain = _fastest([each.name for each in peers if not each.speculation], speeds)
    best = _fastest([each.name for each in peers], speeds)
    out = []
    for each in present:
        mine = list(speeds[each.name].values())
        low, median, high = np.quantile(mine, [0.1, 0.5, 0.9]).tolist()
        timings = [turn.timings[each.name] for turn in turns if each.name in turn.timings]
        out.append(
            {
                "configuration": each.name,
                "engine": each.engine,
                "mode": each.mode,
                "peer": each.peer,
                "samples": len(mine),
                "tokens_per_second": median,
                "low": low,
                "high": high,
                "best_plain": best_plain,
                "to_best_plain": ratio(speeds, each.name, best_plain),
                "to_best_plain_range": ratio_range(speeds, each.name, best_plain),
                "best": best,
                "to_best": ratio(speeds, each.name, best),
                "to_best_range": ratio_range(speeds, each.name, best),
                "identical": _identical(turns, each, batch),
                "first_seconds": float(np.median([t.first_seconds for t in timings])),
                "timed": "/".join(sorted({t.timed for t in timings})),
            }
        )
    return out


def by_category(
    turns: Sequence[Turn], table: Sequence[Row], categories: Sequence[str]
) -> list[dict[str, Any]]:
    """For each category and configuration the median speed and the ratio to the best peer.

    Args:
        turns: all turns.
        table: from `rows`; the best peer is the best over all prompts.
        categories: of the prompts, by number.
    """
    out = []
    for category in dict.fromkeys(categories):
        chosen = [turn for turn in turns if categories[turn.prompt] == category]
        speeds = {
            row["configuration"]: {
                (turn.round, turn.prompt): speed(turn.timings[row["configuration"]])
                for turn in chosen
                if row["configuration"] in turn.timings
            }
            for row in table
        }
        for row in table:
            mine = speeds[row["configuration"]]
            if mine:
                entry = {
                    "category": category,
                    "configuration": row["configuration"],
                    "tokens_per_second": float(np.median(list(mine.values()))),
                    "to_best": ratio(speeds, row["configuration"], row["best"]),
                }
                out.append(entry)
    return out


def _fastest(names: Sequence[str], speeds: Mapping[str, Mapping[Any, float]]) -> str | None:
    medians = {name: float(np.median(list(speeds[name].values()))) for name in names}
    return max(medians, key=lambda name: medians[name]) if medians else None


Speeds = Mapping[str, Mapping[Any, float]]
"""By configuration and turn."""


def ratio(speeds: Speeds, name: str, other: str | None) -> float | None:
    """Median ratio within a turn."""
    found = _ratios(speeds, name, other)
    return float(np.median(found)) if found else None


def ratio_range(speeds: Speeds, name: str, other: str | None) -> list[float] | None:
    """The ratios' 10% and 90% quantiles."""
    found = _ratios(speeds, name, other)
    low_high: list[float] = np.quantile(found, [0.1, 0.9]).tolist() if found else []
    return low_high or None


def _ratios(speeds: Speeds, name: str, other: str | None) -> list[float]:
    mine, base = speeds[name], speeds[other] if other is not None else {}
    return [mine[place] / base[place] for place in mine if base.get(place)]


def _identical(turns: Sequence[Turn], configuration: Configuration, batch: int) -> float | None:
    """Share of texts that are those of its plain decoding; None for plain decoding itself."""
    if not configuration.speculation:
        return None
    same = [
        drafted == plain
        for turn in turns
        if configuration.name in turn.timings and configuration.plain in turn.timings
        for drafted, plain in zip(
            texts(turn.timings[configuration.name], batch),
            texts(turn.timings[configuration.plain], batch),
            strict=True,
        )
    ]
    return sum(same) / len(same) if same else None
