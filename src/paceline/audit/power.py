"""What size of bias a test would have seen: found by simulation, at the sample sizes used.

A bias of total variation d moves mass d from some outcomes to others. Of all ways to do that, the
one hardest to see for a chi-square test moves it between two halves of the mass, in proportion
within each: the sum of shift^2 / p is least there, d^2 / (P(A) P(B)) with A and B as equal as the
cells allow. So what is found is what would have been seen wherever it was, among biases that move
mass between cells; a bias inside one pooled cell is invisible.
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
    """Whether each cell is in the heavier half: largest first, each to the lighter side."""
    heavy = np.zeros(len(probs), dtype=np.bool_)
    sides = [0.0, 0.0]
    for cell in np.argsort(-probs, kind="stable"):
        side = int(sides[1] < sides[0])
        heavy[cell] = side == 0
        sides[side] += float(probs[cell])
    return heavy if sides[0] >= sides[1] else ~heavy


def shifted(probs: ProbArray, heavy: BoolArray, bias: float) -> ProbArray:
    """`probs` after mass `bias` went from the heavier half to the other, in proportion.

    A lighter half without mass gets it in equal parts.
    """
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
    """The least bias that `statistics.fit` finds with probability `power`.

    Args:
        cells: of the test.
        samples: how many outcomes are tested.
        level: of the test, after any correction for other tests.
        power: wanted probability of rejection.
        resamples: of the simulation.
        seed: of the simulation.

    Returns:
        Total variation, or None if no bias of this shape would be found.
    """
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
    """The least bias at any one position that `statistics.compare` finds with that probability.

    Both samples are drawn again from all sequences together, the first one with the law of the
    token at one position shifted. The worst position counts.

    Args:
        features: of the test.
        first: size of the first sample.
        test: outcome of the test, for its law under permutation.
        level: of the test, after any correction for other tests.
        power: wanted probability of rejection.
        seed: of the simulation.

    Returns:
        Total variation, or None if some position's bias would not be found at any size.
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
    """Bisection for the least bias up to `most` at which `found` reaches `power`."""
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
