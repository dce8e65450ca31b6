"""Log-linear laws, a + b log N, by least squares with a bootstrap; not beyond their points."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from paceline.core.types import ProbArray
from paceline.errors import InvalidOption

_RESAMPLES = 2000


@dataclass(frozen=True, slots=True)
class Slope:
    """Value with its 90% bootstrap interval."""

    value: float
    low: float
    high: float


@dataclass(frozen=True, slots=True)
class LogLinear:
    """Fitted law, valid between the least and the greatest of its sizes.

    Attributes:
        intercept: a, the value at N = 1; no forecast.
        per_tenfold: b log 10 with its 90% interval.
        explained: R squared.
        resampled: float64 `[resamples, 2]`, a and b log 10 of each resample.
    """

    sizes: ProbArray
    values: ProbArray
    intercept: float
    per_tenfold: Slope
    explained: float
    resampled: ProbArray

    def at(self, sizes: Sequence[float] | ProbArray) -> ProbArray:
        """Return the law at some sizes; InvalidOption outside the range of the points."""
        found: ProbArray = self.intercept + self.per_tenfold.value * self._logs(sizes)
        return found

    def band(self, sizes: Sequence[float] | ProbArray) -> ProbArray:
        """Return float64 `[2, k]`, the pointwise 90% interval; InvalidOption outside the range."""
        lines = self.resampled[:, :1] + self.resampled[:, 1:] * self._logs(sizes)
        found: ProbArray = np.quantile(lines, [0.05, 0.95], axis=0)
        return found

    def _logs(self, sizes: Sequence[float] | ProbArray) -> ProbArray:
        asked = np.asarray(sizes, dtype=np.float64)
        least, greatest = self.sizes.min(), self.sizes.max()
        if asked.size and (asked.min() < least or asked.max() > greatest):
            raise InvalidOption(
                f"the law was fitted from {least:g} to {greatest:g} and is not extended beyond: "
                "measure there"
            )
        logs: ProbArray = np.log10(asked)
        return logs


def fit_log_linear(
    sizes: Sequence[float] | ProbArray, values: Sequence[float] | ProbArray, seed: int = 0
) -> LogLinear:
    """Fit values on log sizes by least squares, with a residual bootstrap.

    Sizes stay fixed in resamples. Residuals are corrected for leverage, and resamples widened for
    n - 2 degrees of freedom: else intervals of few points are too narrow.

    Raises:
        InvalidOption: fewer than three different sizes, or a value that is not finite.
    """
    x, y = np.asarray(sizes, dtype=np.float64), np.asarray(values, dtype=np.float64)
    if len(np.unique(x)) < 3:
        raise InvalidOption(
            f"a scaling law needs 3 points of different size, not {len(np.unique(x))}: measure more"
        )
    if x.shape != y.shape or not (np.isfinite(y).all() and np.isfinite(x).all() and (x > 0).all()):
        raise InvalidOption("every point of a scaling law needs a size above 0 and a finite value")
    design = np.column_stack([np.ones_like(x), np.log10(x)])
    solve = np.linalg.pinv(design)
    line = solve @ y
    residuals = y - design @ line
    spread = residuals / np.sqrt(1 - np.einsum("ij,ji->i", design, solve))
    spread -= spread.mean()
    generator, freedom = np.random.default_rng(seed), len(x) - 2
    drawn = generator.choice(spread, (_RESAMPLES, len(x)))
    noise = np.sqrt(freedom / generator.chisquare(freedom, (_RESAMPLES, 1)))
    resampled: ProbArray = line + noise * (drawn @ solve.T)
    low, high = np.quantile(resampled[:, 1], [0.05, 0.95])
    total = float(np.square(y - y.mean()).sum())
    return LogLinear(
        x,
        y,
        float(line[0]),
        Slope(float(line[1]), float(low), float(high)),
        1 - float(residuals @ residuals) / total if total else 1.0,
        resampled,
    )
