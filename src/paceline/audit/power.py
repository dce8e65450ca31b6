"""Statistical power of the audit's tests: the least detectable bias, by simulation.

The simulated bias moves mass between two halves of the cells, in proportion: the hardest to detect
by chi-square at a given total variation. A bias inside one pooled cell is invisible.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import numpy.typing as npt

from paceline.audit.statistics import Cells, Features, TwoSample, deviance
from paceline.types import BoolArray, ProbArray

_STEPS = 9
_RUNS = 400


def halves(probs: ProbArray) -> BoolArray:
    """Return whether each cell is in the heavier half: largest first, each to the lighter side."""
    heavy = np.zeros(len(probs), dtype=np.bool_)
    sides = [0.0, 0.0]
    for cell in np.argsort(-probs, kind="stable"):
        side = int(sides[1] < sides[0])
        heavy[cell] = side == 0
        sides[side] += float(probs[cell])
    return heavy if sides[0] >= sides[1] else ~heavy


def shifted(probs: ProbArray, heavy: BoolArray, bias: float) -> ProbArray:
    """Move mass `bias` from the heavier half to the other, in proportion."""
    if heavy.all():  # nowhere to go
        return probs
    light = probs[~heavy].sum()
    parts = probs / light if light > 0 else np.ones(len(probs)) / (~heavy).sum()
    moved = np.where(heavy, probs * (1 - bias / probs[heavy].sum()), probs + bias * parts)
    law: ProbArray = moved / moved.sum()  # rounding can take a lone outcome past 1
    return law


def detectable_fit(
    cells: Cells, samples: int, level: float, power: float, resamples: int, seed: int
) -> float | None:
    """Return the least bias that `statistics.fit` detects with probability `power`, or None."""
    heavy = halves(cells.probs)
    generator = np.random.default_rng(seed)
    null = deviance(generator.multinomial(samples, cells.probs, resamples), cells.probs)
    critical = np.quantile(null, 1 - level)

    def found(bias: float) -> float:
        probs = shifted(cells.probs, heavy, bias)
        drawn = np.random.default_rng(seed + 1).multinomial(samples, probs, resamples)
        return float((deviance(drawn, cells.probs) > critical).mean())

    return _least(found, float(cells.probs[heavy].sum()), power)


def detectable_difference(
    features: Features, first: int, test: TwoSample, level: float, power: float, seed: int
) -> float | None:
    """Return the least bias at the worst position that `statistics.compare` detects, or None.

    Both samples are resampled from all sequences, the first (of `first`) with the distribution at
    one position shifted. `level` is after correction for other tests.
    """
    if not features.groups:
        return None
    critical = float(np.quantile(test.maxima, 1 - level))
    _, total = features.tally(first)
    law = total / total.sum()
    draws = np.random.default_rng(seed)
    other = draws.multinomial(int(total.sum()) - first, law, _RUNS) @ features.kinds
    worst = 0.0
    for group, part in zip(features.groups, features.slices, strict=True):
        if group[0] == "prefix" and group[1] > 1:
            continue
        cells = features.kinds[:, part]
        probs = law @ cells
        heavy = halves(probs)

        def found(
            bias: float,
            cells: npt.NDArray[np.float64] = cells,
            probs: ProbArray = probs,
            heavy: BoolArray = heavy,
        ) -> float:
            biased = law * (cells @ (shifted(probs, heavy, bias) / probs))
            biased /= biased.sum()  # rounding can take a lone kind past 1
            drawn = np.random.default_rng(seed + 1).multinomial(first, biased, _RUNS)
            values = features.statistics(drawn @ features.kinds, other)
            standard = (values - test.location) / test.scale
            return float((standard.max(axis=1) > critical).mean())

        least = _least(found, float(probs[heavy].sum()), power)
        if least is None:
            return None
        worst = max(worst, least)
    return worst


def _least(found: Callable[[float], float], most: float, power: float) -> float | None:
    # Bisection over the bias.
    low, high = 0.0, most
    if found(high) < power:
        return None
    for _ in range(_STEPS):
        middle = (low + high) / 2
        if found(middle) < power:
            low = middle
        else:
            high = middle
    return high
