"""PNG figures by matplotlib (extra `report`)."""

from __future__ import annotations

import io
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol

import matplotlib
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import EngFormatter, LogLocator, NullFormatter

from paceline.core.types import ProbArray
from paceline.training.run import LossPoint

# Of the first series, and of its comparison.
COLOURS = ("#0b84c6", "#d95f02")

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


class Fit(Protocol):
    """What a scaling plot shows: `measure.log_linear.LogLinear`."""

    @property
    def sizes(self) -> ProbArray: ...

    @property
    def values(self) -> ProbArray: ...

    @property
    def per_tenfold(self) -> Any: ...

    def at(self, sizes: Sequence[float] | ProbArray) -> ProbArray: ...

    def band(self, sizes: Sequence[float] | ProbArray) -> ProbArray: ...


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


def loss_plot(losses: Sequence[LossPoint]) -> bytes:
    """Plot the training and held-out loss by step."""

    def draw(axes: Axes) -> None:
        steps = [point.step for point in losses]
        axes.plot(steps, [point.training for point in losses], color=COLOURS[0], label="training")
        held = [(each.step, each.held_out) for each in losses if each.held_out is not None]
        if held:
            axes.plot(*zip(*held, strict=True), "o-", color=COLOURS[1], label="held out")
        axes.set_xlabel("step")
        axes.set_ylabel("loss")

    return png(draw)


def scaling_plot(fits: Mapping[str, Fit], size_name: str, value_name: str) -> bytes:
    """Plot fits on a logarithmic axis that ends where the points do.

    A dashed line joins the ends, to show how far the points bend from the published form.
    """
    alone = len(fits) == 1
    rows = len(fits) + 1

    def draw(axes: Axes) -> None:
        for index, (name, fit) in enumerate(fits.items()):
            colour = COLOURS[0] if alone else f"C{index}"
            slope = fit.per_tenfold
            label = (
                f"{name}: {slope.value:+.3g} per tenfold ({slope.low:+.3g} to {slope.high:+.3g})"
            )
            grid = np.geomspace(fit.sizes.min(), fit.sizes.max(), 50)
            grid[[0, -1]] = fit.sizes.min(), fit.sizes.max()  # rounding may not lead outside
            axes.fill_between(grid, *fit.band(grid), color=colour, alpha=0.15, linewidth=0)
            axes.plot(grid, fit.at(grid), color=colour, label=label)
            axes.plot(fit.sizes, fit.values, "o", color=colour)
        for index, fit in enumerate(fits.values()):
            colour = COLOURS[1] if alone else "black"
            ends = np.array([fit.sizes.min(), fit.sizes.max()])
            values = [float(fit.values[fit.sizes == end].mean()) for end in ends]
            once = "law of arXiv:2505.07858, end to end" if index == 0 else None
            axes.plot(ends, values, color=colour, linestyle="--", linewidth=1, label=once)
        sizes = np.concatenate([fit.sizes for fit in fits.values()])
        axes.set_xscale("log")
        narrow = sizes.max() < 50 * sizes.min()  # then powers of ten are too few
        axes.xaxis.set_major_locator(LogLocator(subs=(1, 2, 5) if narrow else (1,)))
        axes.xaxis.set_major_formatter(EngFormatter(sep=""))
        axes.xaxis.set_minor_formatter(NullFormatter())
        axes.set_xlabel(size_name)
        axes.set_ylabel(value_name)
        low, high = axes.get_ylim()
        axes.set_ylim(low, high + 0.12 * rows * (high - low))  # the legend hides no point

    return png(draw, 3 + 0.2 * rows)
