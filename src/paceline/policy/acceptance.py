"""Acceptance estimates: calibration, hit rates, Platt scaling, rates by depth. One decayed mean
stands under all of them.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterable, Sequence
from itertools import accumulate, repeat
from math import exp, log
from operator import mul
from typing import Any

import numpy as np

from paceline.core.types import ROOT, ProbArray, TokenTree, Verdict
from paceline.policy.constants import (
    CALIBRATION_MEMORY,
    CALIBRATION_PRIOR,
    CURVATURE,
    CURVATURE_MEMORY,
    DEPTH_ABOVE_BELIEF,
    DEPTH_MEMORY,
    HIT_MEMORY,
    LOGARITHMS,
    OWN_DEPTH_BELIEF,
    SELECTED_MEMORY,
    SELECTED_PRIOR,
    TOKEN_BELIEF,
    TOKEN_PRIOR,
)
from paceline.sampling.generation import Generation, VerifiedDraft


class DecayedMean:
    """Weighted mean whose past decays by `memory` with each observation."""

    __slots__ = ("memory", "total", "weight")

    def __init__(self, memory: float, prior: float = 0.0, belief: float = 0.0) -> None:
        """Start at `prior`, believed as much as observations with weights of `belief` together."""
        self.memory = memory
        self.total = prior * belief
        self.weight = belief

    def add(self, value: float, weight: float = 1.0) -> None:
        """Add an observation; `value` is already multiplied by its weight."""
        self.total = self.memory * self.total + value
        self.weight = self.memory * self.weight + weight

    def add_run(self, value: float, times: int) -> None:
        """Add so many equal observations."""
        past = self.memory**times
        weight = (1 - past) / (1 - self.memory)
        self.total = past * self.total + weight * value
        self.weight = past * self.weight + weight

    def fade(self, factor: float) -> None:
        self.total *= factor
        self.weight *= factor

    @property
    def mean(self) -> float:
        return self.total / self.weight if self.weight else 0.0

    def shrunk(self, prior: float, belief: float) -> float:
        """Return the mean with a prior that counts for a weight of `belief`."""
        return (self.total + prior * belief) / (self.weight + belief)


def corrected(probabilities: list[float], factor: float) -> list[float]:
    """Return acceptance probabilities times `factor`; above 1 it multiplies the odds instead."""
    if factor <= 1:
        return [factor * each for each in probabilities]
    return [factor * each / (1 + (factor - 1) * each) for each in probabilities]


class Calibration:
    """Acceptance ratios, accepted over predicted tokens, of a drafter by sequence id."""

    def __init__(self) -> None:
        self._all = DecayedMean(CALIBRATION_MEMORY)
        self._own: dict[int, DecayedMean] = {}
        self._selected = DecayedMean(SELECTED_MEMORY)

    def verified(self, id: int, accepted: float, predicted: float) -> None:
        # Selecting the highest of uncertain estimates favours those that are too high, so selected
        # drafts have a ratio of their own.
        self._selected.add(accepted, predicted * self._ratio(id))
        self.learn(id, accepted, predicted)

    def learn(self, id: int, accepted: float, predicted: float) -> None:
        self._all.add(accepted, predicted)
        self._own.setdefault(id, DecayedMean(CALIBRATION_MEMORY)).add(accepted, predicted)

    def factor(self, id: int) -> float:
        """Return the acceptance ratio of drafts selected for verification."""
        return self._ratio(id) * self._selected.shrunk(1.0, SELECTED_PRIOR)

    def close(self, id: int) -> None:
        self._own.pop(id, None)

    def _ratio(self, id: int) -> float:
        shared = self._all.shrunk(1.0, 2 * CALIBRATION_PRIOR)
        own = self._own.get(id)
        return shared if own is None else own.shrunk(shared, CALIBRATION_PRIOR)


class HitRates:
    """Table of hit rates, one cell per kind of candidate.

    Attributes:
        table: nested lists, hit rate of every cell at the moment; lists, since single cells are
            read and written at every step.
        cells: all of them, the last index changing fastest.
        flat: their hit rates in that order, as C++ reads them.
    """

    def __init__(self, prior: ProbArray, weight: float = 4.0) -> None:
        """Start from `prior`, float64 of any shape, believed as much as `weight` trials."""
        self.table: list[Any] = prior.tolist()
        self.cells = list(np.ndindex(prior.shape))
        self.flat = array("d", prior.ravel().tolist())
        self._places = {cell: place for place, cell in enumerate(self.cells)}
        self._rows = [(self._row(cell), cell[-1]) for cell in self.cells]
        self._means = [DecayedMean(HIT_MEMORY, rate, weight) for rate in self.flat]

    def add(self, cell: tuple[int, ...], hit: bool) -> None:
        self.count(self._places[cell], hit)

    def count(self, place: int, hit: bool) -> None:
        """Count one trial of the cell with this place in `cells`."""
        mean = self._means[place]
        mean.add(hit)
        row, last = self._rows[place]
        row[last] = self.flat[place] = mean.mean

    def _row(self, cell: tuple[int, ...]) -> list[float]:
        row = self.table
        for index in cell[:-1]:
            row = row[index]
        return row

    @property
    def rates(self) -> ProbArray:
        """Return float64, hit rate of every cell."""
        return np.array(self.table, dtype=np.float64)


# Largest logit.
_LARGEST_LOGIT = 7.0


class PlattScaling:
    """Online Platt scaling (Platt 1999) for requests of one temperature."""

    def __init__(self) -> None:
        self._slope, self._offset = 1.0, 0.0
        self._curvature = [CURVATURE, CURVATURE]  # of the loss, by slope and offset
        # Mean logarithms of draft and of acceptance probabilities.
        self._predicted, self._accepted = (
            DecayedMean(1 - 1 / LOGARITHMS, -1.0, LOGARITHMS) for _ in range(2)
        )

    def acceptance(self, predicted: Sequence[float]) -> list[float]:
        """Return acceptance probabilities, each given acceptance of the tokens before."""
        return list(map(self._scaled, map(_logit, predicted)))

    def predicted(self, acceptance: float) -> float:
        """Return the draft probability of a chain, roughly, for an acceptance probability."""
        if acceptance <= 0:
            return 0.0
        return float(acceptance ** (self._predicted.mean / self._accepted.mean))

    def learn(
        self, predicted: Sequence[float], tokens: Sequence[int], committed: Sequence[int]
    ) -> None:
        """Update from a drafted chain with its draft probabilities and the committed tokens."""
        for probability, token, right in zip(predicted, tokens, committed, strict=False):
            logit = _logit(probability)
            accepted = self._scaled(logit)
            error, bend = (token == right) - accepted, accepted * (1 - accepted)
            by_slope, by_offset = self._curvature
            self._curvature = [
                CURVATURE_MEMORY * by_slope + bend * logit * logit,
                CURVATURE_MEMORY * by_offset + bend,
            ]
            self._slope += error * logit / self._curvature[0]
            self._offset += error / self._curvature[1]
            self._predicted.add(log(max(probability, 1e-3)))
            self._accepted.add(log(max(accepted, 1e-3)))
            if token != right:
                return

    def _scaled(self, logit: float) -> float:
        return 1 / (1 + exp(-self._slope * logit - self._offset))


def _logit(probability: float) -> float:
    if probability <= 0:
        return -_LARGEST_LOGIT
    if probability >= 1:
        return _LARGEST_LOGIT
    return max(-_LARGEST_LOGIT, min(_LARGEST_LOGIT, log(probability / (1 - probability))))


class AcceptanceEstimates:
    """Acceptance probabilities of the drafts of each step, and their calibration."""

    def __init__(self) -> None:
        self._calibration = Calibration()
        self._proposed: dict[int, TokenTree] = {}

    def note(self, sequences: Sequence[Generation], drafts: Sequence[TokenTree]) -> None:
        """Note the drafts of this step, before anything is pruned."""
        self._proposed = {s.id: draft for s, draft in zip(sequences, drafts, strict=True)}

    def score(self, sequence: Generation, probability: float) -> float:
        """Return the drafter's score of a token with that probability (inverse calibration)."""
        [score] = corrected([probability], 1 / self._calibration.factor(sequence.id))
        return score

    def learn(self, step: Sequence[VerifiedDraft]) -> None:
        """Calibrate by verdicts; an empty draft counts as dropped."""
        for sequence, draft, verdict, _ in step:
            if len(draft):
                predicted = 0.0 if draft.scores is None else sum(draft.scores.tolist())
                self._calibration.verified(sequence.id, len(verdict.path), predicted)
            else:
                self._learn_unverified(sequence, verdict)

    def close(self, sequence: Generation) -> None:
        self._calibration.close(sequence.id)

    def of(self, sequence: Generation, draft: TokenTree) -> list[float]:
        """Return calibrated acceptance probabilities of the nodes."""
        if draft.scores is None:
            return []
        return corrected(draft.scores.tolist(), self._calibration.factor(sequence.id))

    def _learn_unverified(self, sequence: Generation, verdict: Verdict) -> None:
        # A dropped draft shows whether its first tokens would have been accepted. Without this,
        # a drafter that did not pay once would never be tried again.
        draft = self._proposed.get(sequence.id)
        if draft is None or draft.scores is None or not len(draft):
            return
        nodes = zip(
            draft.tokens.tolist(), draft.parents.tolist(), draft.scores.tolist(), strict=True
        )
        first = {token: score for token, parent, score in nodes if parent == ROOT}
        accepted = float(verdict.next_token in first)
        self._calibration.learn(sequence.id, accepted, sum(first.values()))


class DepthRates:
    """Acceptance rate of the token at each depth, given acceptance of the tokens before."""

    def __init__(self, depth: int, memory: float = 1.0) -> None:
        """Start without trials, which decay by `memory` with each newer one of their depth."""
        self._depths = [DecayedMean(memory) for _ in range(depth)]

    def add(self, drafted: int, accepted: int) -> None:
        """Count a draft: its depth, and the length of the accepted path."""
        tried = min(drafted, accepted + 1)  # below the first miss nothing was tried
        for depth, rate in enumerate(self._depths[:tried]):
            rate.add(depth < accepted)

    def fade(self, factor: float) -> None:
        for rate in self._depths:
            rate.fade(factor)

    def rates(self, priors: Iterable[float], belief: float) -> list[float]:
        """Return the rate at each depth, with a prior that counts for `belief` trials."""
        pairs = zip(self._depths, priors, strict=False)
        return [rate.shrunk(prior, belief) for rate, prior in pairs]

    def falling(self, first: float, belief: float) -> list[float]:
        """Return the rates, where the prior of each depth is the rate of the one above."""
        out = accumulate(self._depths, lambda rate, own: own.shrunk(rate, belief), initial=first)
        return list(out)[1:]


class ChainReach:
    """Acceptance probabilities of chains down to each depth, by sequence id.

    A depth that a sequence has not tried for long returns to the shared rate.
    """

    def __init__(self, depth: int, acceptance: float) -> None:
        # `acceptance`: prior of a first token.
        # Number of the current step; set by the owner.
        self.step = 0
        self._depth = depth
        self._acceptance = acceptance
        self._all = DepthRates(depth, DEPTH_MEMORY)
        self._rates = self._all.falling(acceptance, DEPTH_ABOVE_BELIEF)
        self._own: dict[int, tuple[DepthRates, int]] = {}  # as they were at a step

    def reach(self, id: int, most: int) -> list[float]:
        """Return acceptance probabilities of the first `most` tokens of a chain, never rising."""
        rates = self._rates[:most]
        if id in self._own:
            rates = self._faded(id).rates(rates, OWN_DEPTH_BELIEF)
        return list(accumulate(rates, mul))

    def learn(self, id: int, drafted: int, accepted: int) -> None:
        """Count a chain of `drafted` tokens, `accepted` of them accepted."""
        self._all.add(drafted, accepted)
        self._faded(id).add(drafted, accepted)
        self._rates = self._all.falling(self._acceptance, DEPTH_ABOVE_BELIEF)

    def close(self, id: int) -> None:
        self._own.pop(id, None)

    def _faded(self, id: int) -> DepthRates:
        own, step = self._own.get(id) or (DepthRates(self._depth), self.step)
        own.fade(DEPTH_MEMORY ** (self.step - step))
        self._own[id] = own, self.step
        return own


class RecentReach(DepthRates):
    """Acceptance probabilities down to each depth; unused depths fall back to the prior."""

    @property
    def reach(self) -> ProbArray:
        """Return float64 `[depth]`, acceptance probability of the token at depth d + 1."""
        rates = self.rates(repeat(TOKEN_PRIOR), TOKEN_BELIEF)
        return np.array(list(accumulate(rates, mul)))

    def fade(self, factor: float = DEPTH_MEMORY) -> None:
        super().fade(factor)
