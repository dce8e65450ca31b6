"""Markdown tables of audit reports on several engines."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

# A report's JSON, or `{"failed": "one line"}`.
Found = Mapping[str, Any]

NOTHING = "\N{EN DASH}"

GREEDY = ("configuration", "version", "identical", "gaps at first differences", "near-ties")
LAWS = (
    *("configuration", "accepted drafts", "p first token", "p sequences", "largest difference"),
    *("seen at 80%", "seen at 90%", "laws"),
)


def summary_tables(found: Mapping[str, Found]) -> str:
    """Format both tables, and a line for each failed engine, from reports by configuration."""
    reports = {name: each for name, each in found.items() if "failed" not in each}
    parts = []
    greedy = {name: each for name, each in reports.items() if each["greedy"]}
    if greedy:
        parts.append(_table(GREEDY, [_greedy_row(name, each) for name, each in greedy.items()]))
    distributions = {name: each for name, each in reports.items() if each["laws"]}
    if distributions:
        parts.append(
            _table(LAWS, [_distribution_row(name, each) for name, each in distributions.items()])
        )
    failed = [f"- `{name}`: {each['failed']}" for name, each in found.items() if "failed" in each]
    if failed:
        parts.append("Failed:\n\n" + "\n".join(failed))
    return "\n\n".join(parts)


def _table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def _named(name: str, report: Found) -> str:
    return f"{name} (lossy)" if report["about"].get("lossless") == "False" else name


def _greedy_row(name: str, report: Found) -> list[str]:
    different = [each for each in report["greedy"] if each["difference"] is not None]
    gaps = sorted(each["gap"] for each in different if each["gap"] is not None)
    unknown = len(different) - len(gaps)
    shown = [f"{gap:.2f}" for gap in gaps] + [f"{unknown} unknown"] * (unknown > 0)
    return [
        _named(name, report),
        report["about"].get("version", NOTHING),
        f"{report['identical']} of {len(report['greedy'])}",
        ", ".join(shown) or NOTHING,
        f"{report['near_ties']} of {len(different)}" if different else NOTHING,
    ]


def _distribution_row(name: str, report: Found) -> list[str]:
    # Least p-values and worst power over the prompts.

    def least(test: str) -> str:
        adjusted = [each["adjusted"] for each in report["laws"] if each["test"] == test]
        return f"{min(adjusted):.2g}" if adjusted else NOTHING

    def seen(power: str) -> str:
        biases = [each["detectable"][power] for each in report["laws"]]
        return "none" if None in biases else f"{max(biases):.2f}"

    most = max(report["laws"], key=lambda each: (-each["adjusted"], each["distance"]))
    return [
        _named(name, report),
        report["about"].get("accepted drafts", "unknown"),
        least("first token"),
        least("sequences"),
        f"{most['distance']:.2f} at {most['where']}",
        seen("80%"),
        seen("90%"),
        "**differ**" if report["rejected"] else "no difference found",
    ]
