"""Plots of a bench as SVG, drawn by matplotlib (extra `report`).

They are narrow, so that text is readable on a phone, and have no background: lines and text take
the colour of the page around them, and methods have colours that stand out on white and on black.
"""

from __future__ import annotations

import io
import re
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import matplotlib
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import MaxNLocator

# Stands for the colour of the page's text until the SVG is written.
_INK = "#010203"

_WIDTH = 4.6
_COLOURS = ("#0b84c6", "#d95f02", "#1b9e77", "#c2568f", "#a6761d", "#7570b3", "#5d9c1f", "#cf3f3f")
_MARKERS = "osD^vPX*"
_DEEPEST = 16

_STYLE: dict[str, Any] = {
    "svg.fonttype": "none",
    "font.family": "sans-serif",
    "font.size": 10,
    "text.parse_math": False,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "grid.alpha": 0.25,
    "legend.frameon": False,
    "lines.markersize": 5.5,
    **dict.fromkeys(
        (
            "text.color",
            "axes.edgecolor",
            "axes.labelcolor",
            "grid.color",
            "xtick.color",
            "ytick.color",
        ),
        _INK,
    ),
}

Row = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Series:
    """Rows of one drafter, over all prompts and by category, and its style in all plots."""

    label: str
    whole: Row
    by_category: Mapping[str, Row]
    style: Mapping[str, Any]


def methods(rows: Sequence[Row]) -> list[Series]:
    """Return drafters in the order of the rows, without those that draft nothing."""
    out: list[Series] = []
    for whole in (row for row in rows if row["category"] == "all"):
        place, name = len(out), whole["drafter"]
        if whole["rows_per_forward"] <= 1:
            continue
        mine = {r["category"]: r for r in rows if r["drafter"] == name and r["category"] != "all"}
        label = name if whole["lossless"] else f"{name} (lossy)"
        out.append(Series(label, whole, mine, _style(place)))
    return out


def speedups(shown: Sequence[Series]) -> str:
    """Plot speed-up by category and method; over all prompts with its 90% interval."""
    categories = ["all", *dict.fromkeys(name for each in shown for name in each.by_category)]

    def draw(axes: Axes) -> None:
        spread = 0.5 / max(1, len(shown) - 1)
        for index, method in enumerate(shown):
            shift = (index - (len(shown) - 1) / 2) * spread
            for place, category in enumerate(categories):
                row = method.whole if category == "all" else method.by_category.get(category)
                if row is None or row["speedup"] is None:
                    continue
                axes.plot(row["speedup"], place + shift, linestyle="", **method.style)
                if category == "all" and row["speedup_low"] is not None:
                    ends = row["speedup_low"], row["speedup_high"]
                    axes.plot(ends, [place + shift] * 2, color=method.style["color"], alpha=0.7)
        for border in range(1, len(categories)):
            axes.axhline(border - 0.5, color=_INK, alpha=0.25, linewidth=0.8)
        axes.grid(visible=False, axis="y")
        axes.tick_params(axis="y", length=0)
        axes.axvline(1, color=_INK, linewidth=1)
        axes.set_yticks(range(len(categories)), categories)
        axes.set_ylim(len(categories) - 0.5, -0.5)
        axes.set_xlabel("speed-up over plain decoding")

    height = (0.14 * len(shown) + 0.2) * len(categories) + 0.6
    return _figure("speedups", shown, draw, max(1.8, height))


def acceptance(shown: Sequence[Series]) -> str:
    """Plot the share of drafts of at least a depth that were accepted down to it."""

    def draw(axes: Axes) -> None:
        for method in shown:
            shares = method.whole["acceptance_by_depth"][:_DEEPEST]
            axes.plot(range(1, len(shares) + 1), shares, **method.style)
        axes.set_ylim(0, 1.02)
        axes.xaxis.set_major_locator(MaxNLocator(integer=True))
        axes.set_xlabel("depth in the draft (tokens)")
        axes.set_ylabel("accepted")

    return _figure("acceptance", shown, draw, 2.6)


def costs(shown: Sequence[Series], curve: Mapping[int, float]) -> str:
    """Plot c(n), and each method's tokens per forward above its rows."""

    def draw(axes: Axes) -> None:
        sizes, prices = list(curve), list(curve.values())
        axes.plot(sizes, prices, color=_INK, linewidth=1.2)
        for method in shown:
            rows, gain = method.whole["rows_per_forward"], method.whole["block_efficiency"]
            price = float(np.interp(rows, sizes, prices))
            axes.plot([rows, rows], [price, gain], color=method.style["color"], linewidth=1)
            axes.plot(rows, price, markerfacecolor="none", linestyle="", **method.style)
            axes.plot(rows, gain, linestyle="", **method.style)
        axes.set_xlim(0, max([2, *(1.6 * each.whole["rows_per_forward"] for each in shown)]))
        top = [each.whole["block_efficiency"] for each in shown]
        top += [price for size, price in curve.items() if size <= axes.get_xlim()[1]]
        axes.set_ylim(0, 1.1 * max(top))
        axes.set_xlabel("rows per forward")
        axes.set_ylabel("c(n), tokens per forward")

    return _figure("costs", shown, draw, 2.8)


def pareto(shown: Sequence[Series]) -> str:
    """Plot tokens per forward against the share of drafting time, with the Pareto front."""

    def draw(axes: Axes) -> None:
        front: list[tuple[float, float]] = []
        for method in sorted(shown, key=_cost):
            point = 100 * method.whole["draft_share"], method.whole["block_efficiency"]
            axes.plot(*point, linestyle="", **method.style)
            if not front or point[1] > front[-1][1]:
                front.append(point)
        axes.step(*zip(*front, strict=True), where="post", color=_INK, alpha=0.5, linewidth=1)
        axes.margins(0.12)
        axes.set_xlabel("share of time spent drafting (%)")
        axes.set_ylabel("tokens per forward")

    return _figure("pareto", shown, draw, 2.6)


def scatter(name: str, points: Sequence[tuple[str, int, float, float]], along: str, up: str) -> str:
    """Plot settings, `(label, batch, x, y)`; those of batch 1 are filled."""
    labels = list(dict.fromkeys(label for label, *_ in points))
    shown = [Series(label, {}, {}, _style(place)) for place, label in enumerate(labels)]

    def draw(axes: Axes) -> None:
        for label, batch, x, y in points:
            style = shown[labels.index(label)].style
            fill = style["color"] if batch == 1 else "none"
            axes.plot([x], [y], linestyle="", markerfacecolor=fill, **style)
        axes.set_xscale("log")
        axes.set_xlabel(along)
        axes.set_ylabel(up)

    return _figure(name, shown, draw, 3.2)


def _style(place: int) -> dict[str, Any]:
    marker = _MARKERS[(place + place // len(_COLOURS)) % len(_MARKERS)]
    return {"color": _COLOURS[place % len(_COLOURS)], "marker": marker}


def _cost(method: Series) -> tuple[float, float]:
    return method.whole["draft_share"], -method.whole["block_efficiency"]


def _figure(name: str, shown: Sequence[Series], draw: Callable[[Axes], None], height: float) -> str:
    lines = -(-len(shown) // 2)
    style: Any = {**_STYLE, "svg.hashsalt": name}  # its type is every known key, by version
    with matplotlib.rc_context(style), warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="Glyph")  # browsers have more fonts than we
        figure = Figure((_WIDTH, height + 0.2 * lines + 0.1), layout="constrained")
        draw(figure.add_subplot())
        keys = [Line2D([], [], linestyle="", label=each.label, **each.style) for each in shown]
        figure.legend(handles=keys, loc="outside lower center", ncols=2, handletextpad=0.2)
        text = io.StringIO()
        nothing = dict.fromkeys(("Creator", "Date", "Format", "Type"))
        figure.savefig(text, format="svg", transparent=True, metadata=nothing)
    svg = text.getvalue()
    svg = svg[svg.index("<svg") :].replace(_INK, "currentColor")
    svg = re.sub(r'<g id="[^"]*"', "<g", svg)  # the names of groups are not unique in a page
    return re.sub(r' (width|height)="[\d.]+pt"', "", svg, count=2)
