"""Tests that hold their level at any sample size: Monte-Carlo, permutation, Holm's correction.

All p-values are of the form (1 + exceedances) / (1 + resamples), which is valid for any number of
resamples (Phipson and Smyth 2010): under the null hypothesis p <= a with probability at most a.
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

Group = tuple[str, int]
"""A family of cells: "token" or "prefix", and the position in the continuation, from 1."""

LEAST_EXPECTED = 5.0
"""Outcomes that are expected less often, in each sample, share a cell."""


def holm(p_values: Sequence[float]) -> list[float]:
    """Adjusted p-values (Holm 1979): rejecting those under a errs anywhere at most a of the time.

    No assumption is made on how the tests depend on each other.
    """
    adjusted = [0.0] * len(p_values)
    running = 0.0
    for rank, index in enumerate(sorted(range(len(p_values)), key=p_values.__getitem__)):
        running = max(running, min(1.0, (len(p_values) - rank) * p_values[index]))
        adjusted[index] = running
    return adjusted


@dataclass(frozen=True, slots=True)
class Cells:
    """A law pooled into cells that are expected often enough.

    Attributes:
        index: cell by outcome; outcomes that are missing belong to the last cell.
        probs: float64 `[cells]`.
    """

    index: Mapping[Token, int]
    probs: ProbArray

    def count(self, outcomes: Sequence[Token]) -> IntArray:
        """int64 `[cells]`."""
        last = len(self.probs) - 1
        places = [self.index.get(outcome, last) for outcome in outcomes]
        return np.bincount(places, minlength=last + 1)


def pool(law: Mapping[Token, float], samples: int) -> Cells:
    """Cells for `samples` draws from `law`; what `law` lacks to one belongs to the last cell."""
    floor = LEAST_EXPECTED / samples
    likely = sorted((o for o, p in law.items() if p >= floor), key=lambda o: -law[o])
    probs = [law[outcome] for outcome in likely]
    rest = max(0.0, 1.0 - math.fsum(probs))
    whole = np.array([*probs, rest])
    return Cells({outcome: i for i, outcome in enumerate(likely)}, whole / whole.sum())


def deviance(counts: npt.NDArray[np.int64], probs: ProbArray) -> ProbArray:
    """The G statistic, 2 sum n log(n / expected), of each row of `[..., cells]` counts.

    Infinite where something was seen that has no probability.
    """
    expected = probs * counts.sum(axis=-1, keepdims=True)
    with np.errstate(divide="ignore", invalid="ignore"):
        terms = np.where(counts > 0, counts * np.log(counts / expected), 0.0)
    result: ProbArray = 2 * terms.sum(axis=-1)
    return result


def fit(outcomes: Sequence[Token], cells: Cells, resamples: int, seed: int) -> float:
    """p-value of the multinomial goodness-of-fit test (G) that `outcomes` follow `cells`.

    The null law of the statistic is drawn, not approximated by chi-square, so that the level
    holds for small counts too.
    """
    counts = cells.count(outcomes)
    seen = float(deviance(counts, cells.probs))
    drawn = np.random.default_rng(seed).multinomial(len(outcomes), cells.probs, resamples)
    return (1 + int((deviance(drawn, cells.probs) >= seen - 1e-9).sum())) / (1 + resamples)


class Features:
    """Two samples of sequences as counts of cells, in groups.

    The cells of group ("token", t) are the tokens at position t, those of ("prefix", t) the first
    t tokens. A bias of speculation moves mass between tokens of one position given what stands
    before it: the prefixes see it whole where few prefixes are likely, the tokens where many are.
    Cells that both samples together fill too seldom are pooled, one pool in each group. Cells are
    chosen from both samples together, never from which sample a sequence is of, so permuting that
    keeps every level exact.
    """

    def __init__(self, sequences: Sequence[Sequence[Token]], smaller: int) -> None:
        """Find the cells.

        Args:
            sequences: both samples together, all of one length.
            smaller: size of the smaller sample.
        """
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
        self.kinds: npt.NDArray[np.float64] = kinds
        """float64 `[kinds, cells]`, 1 where sequences of a kind are in a cell."""
        self.kind: IntArray = kind_of.reshape(-1)
        """int64 `[sequences]`, the kind of each. Sequences of one kind are the same to the test."""

    def tally(self, first: int) -> tuple[IntArray, IntArray]:
        """int64 `[kinds]`: how many of the first `first` sequences, and of all, are of each."""
        size = len(self.kinds)
        part = np.bincount(self.kind[:first], minlength=size)
        return part, np.bincount(self.kind, minlength=size)

    def statistics(
        self, first: npt.NDArray[np.float64], second: npt.NDArray[np.float64]
    ) -> ProbArray:
        """Two-sample chi-square by group.

        Args:
            first: float64 `[..., cells]`, counts of the first sample; `second` likewise.

        Returns:
            float64 `[..., groups]`.
        """
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
    """Outcome of a two-sample test.

    Attributes:
        p_value: of the largest standardised statistic over groups.
        group: where that is, None if both samples are one and the same constant.
        location: float64 `[groups]`, mean of each group's statistic under permutation.
        scale: float64 `[groups]`, its standard deviation.
        maxima: float64 `[resamples]`, the largest standardised statistic of each permutation.
    """

    p_value: float
    group: Group | None
    location: ProbArray
    scale: ProbArray
    maxima: ProbArray


def compare(features: Features, first: int, resamples: int, seed: int) -> TwoSample:
    """Permutation test that the first `first` sequences and the others have one law.

    The statistic is the largest chi-square over groups, each standardised by its own mean and
    deviation over all relabellings, the true one included, which keeps the test exact.
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
