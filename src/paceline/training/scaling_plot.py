"""The figure of a scaling study: points, fits with their bands, and the law that was published."""

from __future__ import annotations

from collections.abc import Mapping
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
    fits: Mapping[str, LogLinear],
    size_name: str,
    value_name: str,
    published: PublishedLaw | None = None,
) -> bytes:
    """PNG of fits, on a logarithmic axis that ends where the points do.

    Args:
        fits: from `fit_log_linear`, by what was fitted; at least one.
        size_name: what N is, such as "training tokens".
        value_name: such as "block efficiency (tokens per forward)".
        published: the law beside them; None for the form alone.
    """
    law = published or PublishedLaw()
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
            once = law.label if index == 0 else None
            axes.plot(*law.line(fit), color=colour, linestyle="--", linewidth=1, label=once)
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
