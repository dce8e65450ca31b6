"""Whether predicted probabilities are what happens: reliability by bins of the prediction."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from paceline.options import require
from paceline.types import IntArray, ProbArray


@dataclass(frozen=True, slots=True)
class Reliability:
    """Predictions against outcomes, in bins of equal width over [0, 1]; empty bins are left out.

    Attributes:
        predicted: float64 `[b]`, mean prediction of each bin.
        observed: float64 `[b]`, mean outcome of each bin.
        counts: int64 `[b]`, examples in each bin.
        error: expected calibration error, the mean of |predicted - observed| over examples.
    """

    predicted: ProbArray
    observed: ProbArray
    counts: IntArray
    error: float


def reliability(predictions: ProbArray, outcomes: ProbArray, bins: int = 10) -> Reliability:
    """Bin predictions.

    Args:
        predictions: float64 `[n]` in [0, 1].
        outcomes: float64 `[n]` in [0, 1]: what happened, or its exact probability.
        bins: of equal width; a prediction on a border belongs above it, 1 to the last.

    Raises:
        InvalidOption: there are no examples, or no bins.
    """
    require(bins >= 1, "bins", bins, "1 or more")
    require(len(predictions) > 0, "number of examples", len(predictions), "1 or more")
    places = np.digitize(predictions, np.linspace(0, 1, bins + 1)[1:-1])
    counts = np.bincount(places, minlength=bins)
    used = counts > 0
    predicted = np.bincount(places, predictions, bins)[used] / counts[used]
    observed = np.bincount(places, outcomes, bins)[used] / counts[used]
    error = float(np.average(np.abs(predicted - observed), weights=counts[used]))
    return Reliability(predicted, observed, counts[used], error)
