"""Small figures as PNG, drawn by matplotlib (extra `report`), for cards that are read anywhere."""

from __future__ import annotations

import io
from collections.abc import Callable
from typing import Any

import matplotlib
from matplotlib.axes import Axes
from matplotlib.figure import Figure

COLOURS = ("#0b84c6", "#d95f02", "#1b9e77")
"""Of what was measured first, of what it is compared with, of a third thing."""

_STYLE: Any = {  # its type is every known key, by version
    "font.size": 10,
    "text.parse_math": False,  # names may hold dollar signs
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "grid.alpha": 0.25,
    "legend.frameon": False,
    "lines.markersize": 5.5,
}


def png(draw: Callable[[Axes], None], height: float = 2.8) -> bytes:
    """One plot, narrow enough to be readable on a phone; the same input gives the same bytes.

    Args:
        draw: fills the axes.
        height: inches; the width is 4.6.
    """
    with matplotlib.rc_context(_STYLE):
        figure = Figure((4.6, height), dpi=160, layout="constrained")
        axes = figure.add_subplot()
        draw(axes)
        if axes.get_legend_handles_labels()[0]:
            axes.legend(fontsize=9)
        out = io.BytesIO()
        figure.savefig(out, format="png", metadata={"Software": None})
    return out.getvalue()
