"""PNG figures by matplotlib (extra `report`)."""

from __future__ import annotations

import io
from collections.abc import Callable
from typing import Any

import matplotlib
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from paceline.training.card import Card
from paceline.training.quality import Reliability

# Of the first series, of its comparison, of a third.
COLOURS = ("#0b84c6", "#d95f02", "#1b9e77")

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
    """Draw one plot of 4.6 by `height` inches; equal input gives equal bytes."""
    with matplotlib.rc_context(_STYLE):
        figure = Figure((4.6, height), dpi=160, layout="constrained")
        axes = figure.add_subplot()
        draw(axes)
        if axes.get_legend_handles_labels()[0]:
            axes.legend(fontsize=9)
        out = io.BytesIO()
        figure.savefig(out, format="png", metadata={"Software": None})
    return out.getvalue()


# The loss curve of a card.


def loss_plot(card: Card) -> bytes:
    """Plot the training and held-out loss by step."""

    def draw(axes: Axes) -> None:
        steps = [point.step for point in card.losses]
        losses = [point.training for point in card.losses]
        axes.plot(steps, losses, color=COLOURS[0], label="training")
        held = [(each.step, each.held_out) for each in card.losses if each.held_out is not None]
        if held:
            axes.plot(*zip(*held, strict=True), "o-", color=COLOURS[1], label="held out")
        axes.set_xlabel("step")
        axes.set_ylabel("loss")

    return png(draw)


# The reliability diagram of predicted acceptance.


def calibration_plot(found: Reliability) -> bytes:
    """Plot the reliability diagram: observed by predicted acceptance, and the share of each bin."""

    def draw(axes: Axes) -> None:
        total = found.counts.sum()
        shares = found.counts / total
        label = f"share of {total} tokens"
        axes.bar(found.predicted, shares, width=0.04, color=COLOURS[0], alpha=0.25, label=label)
        axes.plot([0, 1], [0, 1], color=COLOURS[1], linestyle="--", label="calibrated")
        label = f"observed (error {found.error:.3f})"
        axes.plot(found.predicted, found.observed, "o-", color=COLOURS[0], label=label)
        axes.set_xlim(0, 1)
        axes.set_ylim(0, 1.02)
        axes.set_xlabel("predicted acceptance")
        axes.set_ylabel("observed")

    return png(draw, 3.2)
