"""Exact tests at any sample size: Monte-Carlo, permutation, Holm's correction.

p-values are (1 + exceedances) / (1 + resamples): exact (Phipson and Smyth 2010).
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from paceline.audit.engine import Token
from paceline.types import IntArray, ProbArray

# Family of cells: "token" or "prefix", and the position in the continuation, from 1.
Group = tuple[str, int]

# Outcomes with a smaller expected count are pooled.
LEAST_EXPECTED = 5.0


def holm(p_values: Sequence[float]) -> list[float]:
    """Return adjusted p-values (Holm 1979): familywise control under any dependence."""
    adjusted = [0.0] * len(p_values)
    running = 0.0
    for rank, index in enumerate(sorted(range(len(p_values)), key=p_values.__getitem__)):
        running = max(running, min(1.0, (len(p_values) - rank) * p_values[index]))
        adjusted[index] = running
    return adjusted


@dataclass(frozen=True, slots=True)
class Cells:
    """A distribution pooled into cells; outcomes without an `index` belong to the last cell."""

    index: Mapping[Token, int]
    probs: ProbArray

    def count(self, outcomes: Sequence[Token]) -> IntArray:
        last = len(self.probs) - 1
        places = [self.index.get(outcome, last) for outcome in outcomes]
        return np.bincount(places, minlength=last + 1)


def pool(law: Mapping[Token, float], samples: int) -> Cells:
    """Pool `law` for `samples` draws; missing mass belongs to the last cell."""
    floor = LEAST_EXPECTED / samples
    likely = sorted((o for o, p in law.items() if p >= floor), key=lambda o: -law[o])
    probs = [law[outcome] for outcome in likely]
    rest = max(0.0, 1.0 - math.fsum(probs))
    whole = np.array([*probs, rest])
    return Cells({outcome: i for i, outcome in enumerate(likely)}, whole / whole.sum())


def deviance(counts: npt.NDArray[np.int64], probs: ProbArray) -> ProbArray:
    """Return the G statistic, 2 sum n log(n / expected), of each row of `[..., cells]` counts."""
    expected = probs * counts.sum(axis=-1, keepdims=True)
    with np.errstate(divide="ignore", invalid="ignore"):
        terms = np.where(counts > 0, counts * np.log(counts / expected), 0.0)
    result: ProbArray = 2 * terms.sum(axis=-1)
    return result


def fit(outcomes: Sequence[Token], cells: Cells, resamples: int, seed: int) -> float:
    """Return the Monte-Carlo p-value of the multinomial G test that `outcomes` follow `cells`."""
    counts = cells.count(outcomes)
    seen = float(deviance(counts, cells.probs))
    drawn = np.random.default_rng(seed).multinomial(len(outcomes), cells.probs, resamples)
    return (1 + int((deviance(drawn, cells.probs) >= seen - 1e-9).sum())) / (1 + resamples)


class Features:
    """Cell counts of two samples of sequences, in groups.

    Cells of ("token", t) are the tokens at position t, of ("prefix", t) the first t tokens. Rare
    cells are pooled per group. Cells depend on the union of both samples, so permutation tests
    stay exact.
    """

    def __init__(self, sequences: Sequence[Sequence[Token]], smaller: int) -> None:
        length = len(sequences[0]) if sequences else 0
        floor = LEAST_EXPECTED * len(sequences) / smaller
        self.groups: list[Group] = []
        self.slices: list[slice] = []
        columns: list[npt.NDArray[np.float64]] = []
        width = 0
        for kind, position in [("prefix", 1)] + [
            (kind, t) for t in range(2, length + 1) for kind in ("token", "prefix")
        ]:
            start = 0 if kind == "prefix" else position - 1
            values = [tuple(s[start:position]) for s in sequences]
            cells = [value for value, n in Counter(values).items() if n >= floor]
            place = {value: i for i, value in enumerate(cells)}
            index = np.array([place.get(value, len(cells)) for value in values])
            if len(np.unique(index)) < 2:
                continue
            block = np.zeros((len(sequences), int(index.max()) + 1))
            block[np.arange(len(sequences)), index] = 1
            columns.append(block)
            self.groups.append((kind, position))
            self.slices.append(slice(width, width + block.shape[1]))
            width += block.shape[1]
        membership = np.concatenate(columns, axis=1) if columns else np.zeros((len(sequences), 0))
        kinds, kind_of = np.unique(membership, axis=0, return_inverse=True)
        # float64 `[kinds, cells]`: indicator of the cells of each distinct sequence.
        self.kinds: npt.NDArray[np.float64] = kinds
        # int64 `[sequences]`: index into `kinds`.
        self.kind: IntArray = kind_of.reshape(-1)

    def tally(self, first: int) -> tuple[IntArray, IntArray]:
        """Return int64 `[kinds]`: counts of the first `first` sequences, and of all, by kind."""
        size = len(self.kinds)
        part = np.bincount(self.kind[:first], minlength=size)
        return part, np.bincount(self.kind, minlength=size)

    def statistics(
        self, first: npt.NDArray[np.float64], second: npt.NDArray[np.float64]
    ) -> ProbArray:
        """Return the two-sample chi-square by group, float64 `[..., groups]`."""
        if not self.groups:
            return np.zeros((*first.shape[:-1], 0))
        n = first[..., self.slices[0]].sum(axis=-1, keepdims=True)
        m = second[..., self.slices[0]].sum(axis=-1, keepdims=True)
        both = first + second
        with np.errstate(divide="ignore", invalid="ignore"):
            terms = (first * np.sqrt(m / n) - second * np.sqrt(n / m)) ** 2 / both
        terms = np.where(both > 0, terms, 0.0)
        return np.stack([terms[..., part].sum(axis=-1) for part in self.slices], axis=-1)


@dataclass(frozen=True, slots=True)
class TwoSample:
    """Outcome of a two-sample test on the largest standardised statistic over groups.

    `location` and `scale` are mean and deviation of each group's statistic under permutation,
    `maxima` the largest standardised statistic of each permutation.
    """

    p_value: float
    group: Group | None
    location: ProbArray
    scale: ProbArray
    maxima: ProbArray


def compare(features: Features, first: int, resamples: int, seed: int) -> TwoSample:
    """Test by permutation that the first sequences and the others have one distribution.

    Statistics are standardised over all relabellings, the true one included: exact.
    """
    if not features.groups:
        return TwoSample(1.0, None, np.zeros(0), np.ones(0), np.zeros(0))
    seen, total = features.tally(first)
    # Relabelling at random draws the first sample from all sequences without replacement.
    drawn = np.random.default_rng(seed).multivariate_hypergeometric(total, first, resamples)
    counts = np.concatenate([seen[None], drawn]) @ features.kinds
    values = features.statistics(counts, total @ features.kinds - counts)
    location, scale = values.mean(axis=0), values.std(axis=0)
    scale[scale == 0] = 1.0
    standard = (values - location) / scale
    maxima = standard.max(axis=1)
    exceeding = int((maxima[1:] >= maxima[0] - 1e-9).sum())
    group = features.groups[int(standard[0].argmax())]
    return TwoSample((1 + exceeding) / (1 + resamples), group, location, scale, maxima[1:])
