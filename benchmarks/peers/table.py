"""From turns to rows: tokens per second, ratios to the best of the peers, identity of texts."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from benchmarks.peers.timing import Configuration, Turn

from paceline.audit.engine import Timing
from paceline.bench.report import aligned

Row = dict[str, Any]

_TITLES = (
    *("engine", "mode", "weights", "tokens/s", "10-90%"),
    *("to best plain", "to best", "identical", "timed"),
)


def speed(timing: Timing) -> float:
    """Tokens per second after the first ones; zero where no time passed."""
    seconds = timing.seconds - timing.first_seconds
    return (len(timing.tokens) - timing.first_tokens) / seconds if seconds > 0 else 0.0


def rows(turns: Sequence[Turn], configurations: Sequence[Configuration]) -> list[Row]:
    """A row for every configuration with a sample.

    Ratios are medians of ratios within a turn: a machine's slow minute is in both numbers.
    """
    speeds = {
        each.name: {
            (turn.round, turn.prompt): speed(turn.timings[each.name])
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
                "to_best_plain": _ratio(speeds, each.name, best_plain),
                "best": best,
                "to_best": _ratio(speeds, each.name, best),
                "identical": _identical(turns, each),
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
                    "to_best": _ratio(speeds, row["configuration"], row["best"]),
                }
                out.append(entry)
    return out


def _fastest(names: Sequence[str], speeds: Mapping[str, Mapping[Any, float]]) -> str | None:
    medians = {name: float(np.median(list(speeds[name].values()))) for name in names}
    return max(medians, key=lambda name: medians[name]) if medians else None


def _ratio(speeds: Mapping[str, Mapping[Any, float]], name: str, other: str | None) -> float | None:
    if other is None:
        return None
    mine, base = speeds[name], speeds[other]
    ratios = [mine[place] / base[place] for place in mine if base.get(place)]
    return float(np.median(ratios)) if ratios else None


def _identical(turns: Sequence[Turn], configuration: Configuration) -> float | None:
    """Share of texts that are those of its plain decoding; None for plain decoding itself."""
    if not configuration.speculation:
        return None
    same = [
        turn.timings[configuration.name].tokens == turn.timings[configuration.plain].tokens
        for turn in turns
        if configuration.name in turn.timings and configuration.plain in turn.timings
    ]
    return sum(same) / len(same) if same else None


def cells(table: Sequence[Row], about: Mapping[str, Mapping[str, str]]) -> list[list[str]]:
    """Titles and rows for people, the fastest first."""

    def shown(value: float | None, pattern: str) -> str:
        return "-" if value is None else format(value, pattern)

    out = [list(_TITLES)]
    for row in sorted(table, key=lambda row: -row["tokens_per_second"]):
        out.append(
            [
                row["engine"],
                row["mode"],
                about.get(row["engine"], {}).get("weights", "-"),
                f"{row['tokens_per_second']:.1f}",
                f"{row['low']:.1f} to {row['high']:.1f}",
                shown(row["to_best_plain"], ".2f"),
                shown(row["to_best"], ".2f"),
                shown(row["identical"], ".0%"),
                row["timed"],
            ]
        )
    return out


def plain(results: Mapping[str, Any]) -> str:
    """The table and what did not run, as aligned text."""
    return "\n".join([aligned(cells(results["rows"], results["about"])), "", *_notes(results)])


def markdown(results: Mapping[str, Any]) -> str:
    """results.md."""
    settings, machine = results["settings"], results["machine"]
    lines = ["| " + " | ".join(line) + " |" for line in cells(results["rows"], results["about"])]
    lines.insert(1, "|" + "---|" * len(_TITLES))
    about = [
        f"- {name}: " + ", ".join(f"{key} {value}" for key, value in said.items())
        for name, said in results["about"].items()
    ]
    return (
        f"# Beside other engines\n\n{machine['cpu']}, {machine['cores']} cores. "
        f"{settings['prompts']} prompts, {results['rounds']} rounds, "
        f"{settings['max_new_tokens']} tokens, {settings['threads']} threads, greedy.\n\n"
        + "\n".join([*lines, "", *_notes(results), "", *_categories(results), "", *about])
        + "\n"
    )


def _categories(results: Mapping[str, Any]) -> list[str]:
    """Ratios of paceline to the best peer, by category."""
    own = [row["configuration"] for row in results["rows"] if not row["peer"]]
    ratios: dict[str, dict[str, float]] = {}
    for entry in results["by_category"]:
        if entry["to_best"] is not None:
            ratios.setdefault(entry["category"], {})[entry["configuration"]] = entry["to_best"]
    lines = [
        [category, *(f"{found[name]:.2f}" if name in found else "-" for name in own)]
        for category, found in ratios.items()
    ]
    table = [["to best, by category", *own], ["---"] * (len(own) + 1), *lines]
    return ["| " + " | ".join(line) + " |" for line in table] if own and lines else []


def _notes(results: Mapping[str, Any]) -> list[str]:
    out = [f"- not run: {name}: {reason}" for name, reason in results["not_run"].items()]
    if results["rows"]:
        first = results["rows"][0]
        out.insert(0, f"- best plain peer: {first['best_plain']}; best peer: {first['best']}")
    return out


def plot(table: Sequence[Row], path: Path) -> bool:
    """Tokens per second with their 10-90% range, as SVG; False without matplotlib."""
    try:
        from matplotlib.figure import Figure
    except ImportError:
        return False
    ordered = sorted(table, key=lambda row: row["tokens_per_second"])
    figure = Figure((6, 0.8 + 0.28 * len(ordered)), layout="constrained")
    axes = figure.add_subplot()
    for place, row in enumerate(ordered):
        colour = "#1b9e77" if row["peer"] else "#d95f02"
        axes.plot([row["low"], row["high"]], [place, place], color=colour, alpha=0.6)
        axes.plot(row["tokens_per_second"], place, "o", color=colour)
    axes.set_yticks(range(len(ordered)), [row["configuration"] for row in ordered])
    axes.set_xlim(left=0)
    axes.set_xlabel("tokens per second, median and 10-90%")
    axes.grid(axis="x", alpha=0.25)
    figure.savefig(path, format="svg", metadata={"Date": None})
    return True
