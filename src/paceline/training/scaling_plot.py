"""The figure of a scaling study: points, the fit with its band, and the law that was published."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from matplotlib.axes import Axes
from matplotlib.ticker import EngFormatter, LogLocator, NullFormatter

from paceline.training.plotting import COLOURS, png
from paceline.training.scaling import LogLinear


@dataclass(frozen=True, slots=True)
class PublishedLaw:
    """A law from the literature.

    Attributes:
        label: for the legend.
        per_tenfold: its slope per factor of ten in the same unit as the points, or None where no
            coefficient is known and the form alone can be shown.
    """

    label: str = "law of arXiv:2505.07858, end to end"
    per_tenfold: float | None = None

    def line(self, fit: LogLinear) -> tuple[list[float], list[float]]:
        """Its two ends over the range of the points: sizes and values.

        With a slope it passes through the middle of the points, since intercepts depend on the
        model. Without one it joins the mean values at the least and at the greatest size, and
        shows how far the points between them bend from a straight line.
        """
        ends = np.array([fit.sizes.min(), fit.sizes.max()])
        if self.per_tenfold is None:
            values = [float(fit.values[fit.sizes == end].mean()) for end in ends]
            return ends.tolist(), values
        middle = np.log10(fit.sizes).mean()
        shift = self.per_tenfold * (np.log10(ends) - middle)
        return ends.tolist(), (fit.values.mean() + shift).tolist()


def scaling_plot(
    fit: LogLinear, size_name: str, value_name: str, published: PublishedLaw | None = None
) -> bytes:
    """PNG of a fit, on a logarithmic axis that ends where the points do.

    Args:
        fit: from `fit_log_linear`.
        size_name: what N is, such as "training tokens".
        value_name: such as "block efficiency (tokens per forward)".
        published: the law beside it; None for the form alone.
    """
    law = published or PublishedLaw()

    def draw(axes: Axes) -> None:
        grid = np.geomspace(fit.sizes.min(), fit.sizes.max(), 50)
        grid[[0, -1]] = fit.sizes.min(), fit.sizes.max()  # rounding may not lead outside
        slope = fit.per_tenfold
        label = f"fit: {slope.value:+.3g} per tenfold ({slope.low:+.3g} to {slope.high:+.3g})"
        axes.fill_between(grid, *fit.band(grid), color=COLOURS[0], alpha=0.18, linewidth=0)
        axes.plot(grid, fit.at(grid), color=COLOURS[0], label=label)
        axes.plot(*law.line(fit), color=COLOURS[1], linestyle="--", label=law.label)
        axes.plot(fit.sizes, fit.values, "o", color=COLOURS[0])
        axes.set_xscale("log")
        narrow = fit.sizes.max() < 50 * fit.sizes.min()  # then powers of ten are too few
        axes.xaxis.set_major_locator(LogLocator(subs=(1, 2, 5) if narrow else (1,)))
        axes.xaxis.set_major_formatter(EngFormatter(sep=""))
        axes.xaxis.set_minor_formatter(NullFormatter())
        axes.set_xlabel(size_name)
        axes.set_ylabel(value_name)

    return png(draw, 3.2)
