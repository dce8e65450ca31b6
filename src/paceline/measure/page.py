"""A bench as one HTML page that needs nothing else: plots, table, settings."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from importlib.util import find_spec
from typing import Any

import jinja2

from paceline.measure import report

HINT = "report.html has no plots: pip install 'paceline[report]'"


def can_plot() -> bool:
    """Return if matplotlib is installed."""
    return find_spec("matplotlib") is not None


def render(template: str, **values: Any) -> str:
    """Render a template of this folder."""
    environment = jinja2.Environment(
        loader=jinja2.PackageLoader("paceline.measure", ""),
        autoescape=True,
        trim_blocks=True,
        lstrip_blocks=True,
        undefined=jinja2.StrictUndefined,
    )
    return environment.get_template(template).render(**values)


def page(results: Mapping[str, Any]) -> str:
    """Render the page of what results.json holds."""
    rows, plots_possible = results["rows"], can_plot()
    return render(
        "page.html",
        results=results,
        settings=report.settings(results),
        titles=report.titles(),
        rows=[(row, report.cells(row)) for row in rows],
        place=report.place(results),
        facts=report.facts(results),
        figures=_figures(rows, results["c_n"]) if plots_possible else [],
        hint=None if plots_possible else HINT,
    )


def _figures(
    rows: Sequence[Mapping[str, Any]], curve: Mapping[int, float]
) -> list[tuple[str, str, str]]:
    from paceline.measure import plots

    shown = plots.methods(rows)
    if not shown:
        return []
    return [
        (
            "Speed-up by method and category",
            "Tokens per second of decoding over those of plain decoding, prefill excluded. Left "
            "of the line a method loses. Bars: 90% interval over prompts.",
            plots.speedups(shown),
        ),
        (
            "Acceptance by depth",
            "Of the drafts that reach a depth, the share whose accepted path reaches it too. Few "
            "drafts are deep, so the right-hand end rests on few cases.",
            plots.acceptance(shown),
        ),
        (
            "Cost of a forward and operating points",
            "Line: time of a forward over n rows, in units of one over a single row. Each method "
            "stands at its mean rows per forward and sequence: hollow its cost on the line, "
            "filled its tokens per forward. Filled over hollow is its gain before drafting time.",
            plots.costs(shown, curve),
        ),
        (
            "Draft cost against block efficiency",
            "Up and left is better. No method beats one on the line in both.",
            plots.pareto(shown),
        ),
    ]
