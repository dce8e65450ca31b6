"""How acceptance grows with training tokens or with a drafter's size: a + b log N.

The form is the log-linear law of Yan et al. 2025 (arXiv:2505.07858, Theorems 1.1 and 1.2), stated
for acceptance against pretraining tokens and against a drafter's capacity.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from paceline.errors import InvalidOption
from paceline.training.quality import Figure
from paceline.types import ProbArray

_RESAMPLES = 2000


@dataclass(frozen=True, slots=True)
class LogLinear:
    """A fitted law, for sizes between the least and the greatest of its points.

    Attributes:
        sizes: float64 `[n]`, of the points: training tokens, or parameters.
        values: float64 `[n]`, of the points: acceptance, or block efficiency.
        intercept: a, the value at N = 1, which is no forecast.
        per_tenfold: b log 10, what ten times as much brings, with its 90% interval.
        explained: share of the values' variance that the law explains, R squared.
        resampled: float64 `[resamples, 2]`, a and b log 10 of each resample.
    """

    sizes: ProbArray
    values: ProbArray
    intercept: float
    per_tenfold: Figure
    explained: float
    resampled: ProbArray

    def at(self, sizes: Sequence[float] | ProbArray) -> ProbArray:
        """float64, the law at some sizes.

        Raises:
            InvalidOption: one is outside the range of the points.
        """
        found: ProbArray = self.intercept + self.per_tenfold.value * self._logs(sizes)
        return found

    def band(self, sizes: Sequence[float] | ProbArray) -> ProbArray:
        """float64 `[2, k]`, the pointwise 90% interval of the law at some sizes.

        Raises:
            InvalidOption: one is outside the range of the points.
        """
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
    """Least squares of values on the logarithm of sizes, with a bootstrap over residuals.

    Sizes are chosen, not drawn, so they stay as they are in resamples. Residuals are divided by
    the square root of one minus their leverage, which makes up for the freedom that the fit took;
    and every resample is stretched by what n - 2 degrees of freedom leave open about the size of
    the noise. Otherwise intervals from a handful of points would be much too narrow.

    Args:
        sizes: `[n]`, above 0.
        values: `[n]`.
        seed: of the resamples.

    Raises:
        InvalidOption: fewer than three different sizes, or a value that is no finite number.
    """
    x, y = np.asarray(sizes, dtype=np.float64), np.asarray(values, dtype=np.float64)
    if len(np.unique(x)) < 3:
        raise InvalidOption(
            f"a scaling law needs 3 points of different size, not {len(np.unique(x))}: train more"
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
        Figure(float(line[1]), float(low), float(high)),
        1 - float(residuals @ residuals) / total if total else 1.0,
        resampled,
    )
