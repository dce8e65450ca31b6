"""Results of `paceline bench parallel` as a page of Markdown, and as HTML with plots."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from paceline.lab.measure.page import HINT, Plot, Table, can_plot, render
from paceline.lab.measure.results import table

TITLES = (
    "sampler",
    "batch",
    "right",
    "± seeds",
    "tokens per forward",
    "forwards",
    "positions",
    "ms",
    "KL",
)
FORMS = ("task", "names", "right", "total correlation (nats)")


def cells(row: Mapping[str, Any], spread: Mapping[str, float]) -> list[str]:
    """Return the cells of a row as text."""
    kl = row["kl"]
    return [
        row["setting"],
        str(row["batch"]),
        f"{row['strict']:.1%}",
        f"{spread.get(row['setting'], 0.0):.1%}",
        f"{row['tokens'] / row['forwards']:.2f}",
        f"{row['forwards']:.2f}",
        f"{row['positions']:.0f}",
        f"{row['milliseconds']:.2f}",
        "" if kl is None else f"{kl:.3f}",
    ]


def facts(results: Mapping[str, Any]) -> list[str]:
    """Return what was measured, in lines."""
    about = results["about"]
    lines = [
        f"{about['model']} on {about['runtime']}, temperature {about['temperature']:g}, "
        f"{about['room']} places, {len(about['tasks'])} tasks, {about['seeds']} seeds of "
        f"{about['cases']} cases per template. All figures but shares are means per answer.",
        f"Area under the frontier of accuracy over tokens per forward: {results['area']:.3f}.",
    ]
    if not results["complete"]:
        lines.append("The run was interrupted: some cells are missing.")
    for batch, orders in results["by_template"].items():
        firsts = [f"{template}: {names[0]}" for template, names in orders.items() if names]
        alike = len({tuple(names) for names in orders.values()}) == 1
        lines.append(
            f"Batch {batch}, most accurate by template: {'; '.join(firsts)}. The order of samplers "
            + ("is the same under all templates." if alike else "changes with the template.")
        )
    return lines


def results_page(results: Mapping[str, Any]) -> str:
    """Return the page as Markdown."""
    shares: dict[tuple[str, int], list[str]] = {}
    for rows in results["by_task"].values():
        for row in rows:
            shares.setdefault((row["setting"], row["batch"]), []).append(f"{row['strict']:.0%}")
    parts = [
        f"# Parallel decoding of {results['about']['model']}\n",
        *(f"{fact}\n" for fact in facts(results)),
        table(TITLES, [cells(row, results["spread"]) for row in results["rows"]]),
        "Right answers by task:\n",
        table(
            ["sampler", "batch", *results["by_task"]],
            [[name, batch, *mine] for (name, batch), mine in shares.items()],
        ),
        "What an ideal model of the marginals does in one step at temperature 1:\n",
        table(FORMS, results["closed_forms"]),
    ]
    return "\n".join(parts)


_FIGURES = (
    ("Accuracy over forwards", "forwards", "forwards per answer", "strict", "right answers"),
    ("Accuracy over positions", "positions", "rows per answer", "strict", "right answers"),
    ("Accuracy over time", "milliseconds", "milliseconds per answer", "strict", "right answers"),
    ("KL over forwards", "forwards", "forwards per answer", "kl", "KL to the own stream"),
)


def page(results: Mapping[str, Any]) -> str:
    """Return the page as HTML that needs nothing else; without matplotlib it has no plots."""
    figures = []
    if can_plot():
        from paceline.lab.measure import plots

        for title, x, along, y, up in _FIGURES:
            points = [(r["setting"], r["batch"], r[x], r[y]) for r in results["rows"]]
            shown = [point for point in points if point[3] is not None]
            if shown:
                figures.append(Plot(title, plots.scatter(title, shown, along, up)))
    forms = [
        (name, n, f"{chance:.4f}", f"{nats:.3f}")
        for name, n, chance, nats in results["closed_forms"]
    ]
    return render(
        f"Parallel decoding of {results['about']['model']}",
        facts(results),
        [
            Table("Figures", TITLES, [cells(row, results["spread"]) for row in results["rows"]]),
            Table(
                "What an ideal model of the marginals does in one step",
                FORMS,
                forms,
                "No sampler that fills all places at once has a KL divergence below the total "
                "correlation.",
            ),
        ],
        notes=[] if can_plot() else [HINT],
        figures=figures,
    )
