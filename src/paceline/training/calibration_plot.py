"""The reliability diagram of predicted acceptance."""

from __future__ import annotations

from matplotlib.axes import Axes

from paceline.training.calibration import Reliability
from paceline.training.plotting import COLOURS, png


def calibration_plot(found: Reliability) -> bytes:
    """PNG: observed against predicted acceptance, and each bin's share of the examples."""

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
