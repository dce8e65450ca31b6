"""The loss curve as a PNG, by matplotlib (extra `report`)."""

from __future__ import annotations

import io
from collections.abc import Sequence
from typing import Any

import matplotlib
from matplotlib.figure import Figure

from paceline.training.run import LossPoint

# Of training, and of held-out texts.
_COLOURS = ("#0b84c6", "#d95f02")

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


def loss_plot(losses: Sequence[LossPoint]) -> bytes:
    """Plot the training and held-out loss by step; equal input gives equal bytes."""
    with matplotlib.rc_context(_STYLE):
        figure = Figure((4.6, 2.8), dpi=160, layout="constrained")
        axes = figure.add_subplot()
        steps = [point.step for point in losses]
        axes.plot(steps, [point.training for point in losses], color=_COLOURS[0], label="training")
        held = [(each.step, each.held_out) for each in losses if each.held_out is not None]
        if held:
            axes.plot(*zip(*held, strict=True), "o-", color=_COLOURS[1], label="held out")
        axes.set_xlabel("step")
        axes.set_ylabel("loss")
        axes.legend(fontsize=9)
        out = io.BytesIO()
        figure.savefig(out, format="png", metadata={"Software": None})
    return out.getvalue()
