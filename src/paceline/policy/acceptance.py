"""Calibration of acceptance probabilities: accepted over expected tokens, also per sequence."""

from __future__ import annotations

from array import array
from collections.abc import Sequence as List
from math import exp, log
from typing import Any

import numpy as np

from paceline.core import tree as trees
from paceline.core.types import ROOT, ProbArray, TokenTree, Verdict
from paceline.policy.cost import CostModel
from paceline.policy.plugin_sizes import MarginalGain, Priced, worth_keeping
from paceline.sampling.sequence import Sequence

# Weight, in expected accepted tokens, of the shared factor in a sequence's own factor.
_PRIOR = 4.0

# Decay per draft.
_MEMORY = 0.98

# For selected drafts. Their bias differs little between texts and shows only over many drafts.
_CHOSEN_PRIOR = 10.0
_CHOSEN_MEMORY = 0.995


def corrected(chances: list[float], factor: float) -> list[float]:
    """Return acceptance probabilities times `factor`; above 1 it multiplies the odds instead."""
    if factor <= 1:
        return [factor * chance for chance in chances]
    return [factor * chance / (1 + (factor - 1) * chance) for chance in chances]


class _Ratio:
    def __init__(self, memory: float = _MEMORY) -> None:
        self._memory = memory
        self._accepted = 0.0
        self._predicted = 0.0

    def add(self, accepted: float, predicted: float) -> None:
        self._accepted = self._memory * self._accepted + accepted
        self._predicted = self._memory * self._predicted + predicted

    def value(self, prior: float, weight: float) -> float:
        return (self._accepted + prior * weight) / (self._predicted + weight)


class Calibration:
    """Correction factors of a drafter's acceptance probabilities, by sequence id."""

    def __init__(self) -> None:
        self._all = _Ratio()
        self._own: dict[int, _Ratio] = {}
        self._chosen = _Ratio(_CHOSEN_MEMORY)

    def verified(self, id: int, accepted: float, predicted: float) -> None:
        # Selecting the highest of uncertain estimates favours those that are too high, so selected
        # drafts have a factor of their own.
        self._chosen.add(accepted, predicted * self._factor(id))
        self.learn(id, accepted, predicted)

    def learn(self, id: int, accepted: float, predicted: float) -> None:
        self._all.add(accepted, predicted)
        self._own.setdefault(id, _Ratio()).add(accepted, predicted)

    def factor(self, id: int) -> float:
        """Return accepted over expected tokens, for drafts selected for verification."""
        return self._factor(id) * self._chosen.value(1.0, _CHOSEN_PRIOR)

    def close(self, id: int) -> None:
        self._own.pop(id, None)

    def _factor(self, id: int) -> float:
        shared = self._all.value(1.0, 2 * _PRIOR)
        own = self._own.get(id)
        return shared if own is None else own.value(shared, _PRIOR)


# Hit rates per kind of guess:

# Decay per observation of a cell; a cell remembers about 200 trials.
_statistics_MEMORY = 0.995


class HitRates:
    """Table of hit rates, one cell per kind of guess.

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
        self._hits = [rate * weight for rate in self.flat]
        self._trials = [weight] * len(self.flat)

    def add(self, cell: tuple[int, ...], hit: bool) -> None:
        self.count(self._places[cell], hit)

    def count(self, place: int, hit: bool) -> None:
        """Count one trial of the cell with this place in `cells`."""
        hits = self._hits[place] = _statistics_MEMORY * self._hits[place] + hit
        trials = self._trials[place] = _statistics_MEMORY * self._trials[place] + 1
        row, last = self._rows[place]
        row[last] = self.flat[place] = hits / trials

    def _row(self, cell: tuple[int, ...]) -> list[float]:
        row = self.table
        for index in cell[:-1]:
            row = row[index]
        return row

    @property
    def rates(self) -> ProbArray:
        """Return float64, hit rate of every cell."""
        return np.array(self.table, dtype=np.float64)


# Online Platt scaling (Platt 1999) of draft probabilities to acceptance probabilities.

# Initial slope and offset; those of greedy requests and of drafts with shared Gumbel noise are
# fitted to EAGLE-3 and the default model.
_GREEDY = 1.0, 0.6
_NOISY = 0.75, -0.9
_DRAWN = 1.0, 0.0

# Prior curvature of the loss, in the order of 50 tokens.
_BELIEF = 10.0

# Decay of the curvature per token, so that the fit follows the text.
_chain_chances_MEMORY = 0.999

# Largest logit.
_SUREST = 7.0


class PlattScaling:
    """Platt scaling for requests of one temperature."""

    def __init__(self, greedy: bool, noisy: bool) -> None:
        """Start from fitted values; `noisy` drafts share the target's Gumbel noise."""
        self._slope, self._offset = _GREEDY if greedy else _NOISY if noisy else _DRAWN
        self._bend = [_BELIEF, _BELIEF]  # curvature of the loss by slope and offset
        self._said = self._stood = -1.0  # mean logarithms of chances, as said and as they stand

    def of(self, chances: List[float]) -> list[float]:
        """Return acceptance probabilities, each given acceptance of the tokens before."""
        slope, offset = self._slope, self._offset
        return [1 / (1 + exp(-slope * _logit(chance) - offset)) for chance in chances]

    def said(self, chance: float) -> float:
        """Return the draft probability of a chain, roughly, for an acceptance probability."""
        return chance ** (self._said / self._stood) if chance > 0 else 0.0

    def learn(self, chances: List[float], tokens: List[int], committed: List[int]) -> None:
        """Update from a drafted chain with its draft probabilities and the committed tokens."""
        for chance, token, right in zip(chances, tokens, committed, strict=False):
            at = _logit(chance)
            stands = 1 / (1 + exp(-self._slope * at - self._offset))
            wrong, bend = (token == right) - stands, stands * (1 - stands)
            by_slope, by_offset = self._bend
            self._bend = [
                _chain_chances_MEMORY * by_slope + bend * at * at,
                _chain_chances_MEMORY * by_offset + bend,
            ]
            self._slope += wrong * at / self._bend[0]
            self._offset += wrong / self._bend[1]
            self._said += (log(max(chance, 1e-3)) - self._said) / 64
            self._stood += (log(max(stands, 1e-3)) - self._stood) / 64
            if token != right:
                return


def _logit(chance: float) -> float:
    if chance <= 0:
        return -_SUREST
    return max(-_SUREST, min(_SUREST, log(chance / (1 - chance)))) if chance < 1 else _SUREST


# Calibrated acceptance probabilities of draft nodes, less the price of side branches.


class AcceptanceEstimates:
    """Acceptance probabilities of the drafts of each step, and their calibration."""

    def __init__(self) -> None:
        self._calibration = Calibration()
        self._proposed: dict[int, TokenTree] = {}

    def note(self, sequences: List[Sequence], drafts: List[TokenTree]) -> None:
        """Note the drafts of this step, before anything is pruned."""
        self._proposed = {s.id: draft for s, draft in zip(sequences, drafts, strict=True)}

    def estimate(self, sequence: Sequence, chance: float) -> float:
        """Return the drafter's score of a token with that probability (inverse calibration)."""
        [estimate] = corrected([chance], 1 / self._calibration.factor(sequence.id))
        return estimate

    def worth(
        self, sequences: List[Sequence], drafts: List[TokenTree], costs: CostModel
    ) -> list[MarginalGain]:
        """Return the nodes, without side branches that gain less than they cost."""
        if not (costs.branch or costs.fork) or all(map(trees.is_chain, drafts)):
            promises = map(self.of, sequences, drafts)
            return [dict(enumerate(expected_accepted)) for expected_accepted in promises]
        roots = len(sequences)
        rate = roots / costs.time(roots, roots)  # of the batch without drafts
        price = rate * costs.branch
        priced = [
            Priced(
                draft.parents.tolist(),
                self.of(sequence, draft),
                price * len(sequence.tokens),
            )
            for sequence, draft in zip(sequences, drafts, strict=True)
        ]
        return worth_keeping(priced, rate * costs.fork)

    def learn(
        self, sequences: List[Sequence], drafts: List[TokenTree], verdicts: List[Verdict]
    ) -> None:
        """Calibrate by verdicts; an empty draft counts as dropped."""
        for sequence, draft, verdict in zip(sequences, drafts, verdicts, strict=True):
            if len(draft):
                predicted = 0.0 if draft.scores is None else sum(draft.scores.tolist())
                self._calibration.verified(sequence.id, len(verdict.path), predicted)
            else:
                self._learn_unverified(sequence, verdict)

    def close(self, sequence: Sequence) -> None:
        self._calibration.close(sequence.id)

    def of(self, sequence: Sequence, draft: TokenTree) -> list[float]:
        """Return calibrated acceptance probabilities of the nodes."""
        if draft.scores is None:
            return []
        return corrected(draft.scores.tolist(), self._calibration.factor(sequence.id))

    def _learn_unverified(self, sequence: Sequence, verdict: Verdict) -> None:
        # A dropped draft shows whether its first tokens would have been accepted. Without this,
        # a drafter that did not pay once would never be tried again.
        draft = self._proposed.get(sequence.id)
        if draft is None or draft.scores is None or not len(draft):
            return
        nodes = zip(
            draft.tokens.tolist(), draft.parents.tolist(), draft.scores.tolist(), strict=True
        )
        first = {token: score for token, parent, score in nodes if parent == ROOT}
        stood = float(verdict.next_token in first)
        self._calibration.learn(sequence.id, stood, sum(first.values()))


# Recent acceptance by depth, for drafts without scores or with scores that are not trusted.

# Decay per step; about 50 steps count.
_recent_MEMORY = 0.98

# Prior acceptance probability of a drafted token, and the trials that it counts for.
_CHANCE, _recent_BELIEF = 0.6, 3.0


class RecentReach:
    """Acceptance probabilities down to each depth; unused depths fall back to the prior."""

    def __init__(self, depth: int) -> None:
        self._stood = np.zeros(depth)
        self._tried = np.zeros(depth)

    @property
    def reach(self) -> ProbArray:
        """Return float64 `[depth]`, acceptance probability of the token at depth d + 1."""
        rates = (self._stood + _CHANCE * _recent_BELIEF) / (self._tried + _recent_BELIEF)
        return np.cumprod(rates).astype(np.float64, copy=False)

    def fade(self) -> None:
        self._stood *= _recent_MEMORY
        self._tried *= _recent_MEMORY

    def add(self, drafted: int, accepted: int) -> None:
        """Count a draft: its depth, and the length of the accepted path."""
        self._tried[: min(drafted, accepted + 1)] += 1  # below the first miss nothing was tried
        self._stood[:accepted] += 1
