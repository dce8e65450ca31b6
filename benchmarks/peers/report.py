"""The table for people: aligned text, Markdown, and a plot."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from benchmarks.peers.table import Row
from benchmarks.script import Findings

from paceline.lab.measure.report import aligned

_TITLES = (
    *("engine", "mode", "weights", "tokens/s", "10-90%"),
    *("to best plain", "to best", "identical", "timed"),
)


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
                with_range(row["to_best_plain"], row["to_best_plain_range"]),
                with_range(row["to_best"], row["to_best_range"]),
                shown(row["identical"], ".0%"),
                row["timed"],
            ]
        )
    return out


def with_range(value: float | None, ends: Sequence[float] | None) -> str:
    """A median and, in brackets, its 10% and 90% quantiles."""
    if value is None or ends is None:
        return "-"
    return f"{value:.2f} [{ends[0]:.2f}, {ends[1]:.2f}]"


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
        f"# {settings['model']} beside other engines\n\n"
        f"{machine['cpu']}, {machine['cores']} cores. "
        f"{settings['prompts']} prompts, {settings['batch']} at a time, "
        f"{results['rounds']} rounds, {settings['max_new_tokens']} tokens, "
        f"{settings['threads']} threads, greedy.\n\n"
        + "\n".join([*lines, "", *_notes(results), "", *_categories(results), "", *about])
        + "\n"
    )


def findings(results: Mapping[str, Any]) -> Findings:
    """Put results as a table."""
    settings, about = results["settings"], results["about"]
    rows = sorted(results["rows"], key=lambda row: -row["tokens_per_second"])
    drafting = "".join(
        f" {each} drafts with {said['drafting']}."
        for each, said in about.items()
        if "drafting" in said
    )
    left_out = "".join(f" Not run: {each} ({why})." for each, why in results["not_run"].items())
    best = rows[0]["best"] if rows else None
    return Findings(
        title=f"{settings['model']} beside other engines"
        + (f", {settings['batch']} prompts together" if settings["batch"] > 1 else ""),
        topic="peers",
        command="python -m benchmarks.peers --model FILE --prompts FILE --limit "
        f"{settings['prompts']} --rounds {results['rounds']} --max-new-tokens "
        f"{settings['max_new_tokens']} --only {' '.join(settings['engines'])}",
        columns=("engine", "mode", "weights", "tokens/s", "10 to 90%", "to best", "identical"),
        rows=[
            [
                row["engine"],
                row["mode"],
                about.get(row["engine"], {}).get("weights"),
                round(row["tokens_per_second"], 1),
                f"{row['low']:.0f} to {row['high']:.0f}",
                with_range(row["to_best"], row["to_best_range"]),
                None if row["identical"] is None else f"{row['identical']:.0%}",
            ]
            for row in rows
        ],
        note=f"Greedy, {settings['threads']} threads, by turns. Ratios are medians of ratios in a "
        f"turn to {best}, the best peer, with their 10 to 90%.{drafting}{left_out}",
        data=results,
        shown=plain(results),
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
    if (batch := results["settings"]["batch"]) > 1:
        out.insert(0, f"- tokens/s of {batch} texts together, from when the last of them has begun")
    return out
