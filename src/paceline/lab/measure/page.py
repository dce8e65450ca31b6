"""A report as one HTML page that needs nothing else: facts, figures, tables, settings."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from importlib.util import find_spec
from typing import Any, NamedTuple

import jinja2

HINT = "report.html has no plots: pip install 'paceline[report]'"


class Plot(NamedTuple):
    """A plot below its title, with a text below it."""

    title: str
    svg: str
    text: str = ""


class Table(NamedTuple):
    """A table below its title and a text; rows numbered in `strong` stand out."""

    title: str
    columns: Sequence[str]
    rows: Sequence[Sequence[object]]
    text: str = ""
    strong: Collection[int] = ()


def can_plot() -> bool:
    """Return if matplotlib is installed."""
    return find_spec("matplotlib") is not None


def render(
    title: str,
    facts: Sequence[str],
    tables: Sequence[Table],
    *,
    notes: Sequence[str] = (),
    figures: Sequence[Plot] = (),
    conditions: Sequence[str] = (),
    settings: Mapping[str, Any] | None = None,
) -> str:
    """Return the page.

    Args:
        facts, notes: paragraphs below the title; notes stand out.
        conditions, settings: what the figures hold for, at the end.
    """
    environment = jinja2.Environment(
        loader=jinja2.PackageLoader("paceline.lab.measure", ""),
        autoescape=True,
        trim_blocks=True,
        lstrip_blocks=True,
        undefined=jinja2.StrictUndefined,
    )
    return environment.get_template("page.html").render(
        title=title,
        facts=facts,
        notes=notes,
        figures=figures,
        tables=tables,
        conditions=conditions,
        settings=settings or {},
    )
