"""Discounted Thompson sampling with Gaussian beliefs (Qi et al. 2023, arXiv:2305.10718) over arms
that gain tokens and cost time, for many sequences in one batch. A sequence takes the arm with the
highest tokens - rate * seconds, `rate` being the long-run tokens per second (Dinkelbach 1967).
"""

from __future__ import annotations

from collections.abc import Sequence as List

import numpy as np

from paceline.controllers.prices import Prices
from paceline.types import ProbArray

# Decay of an arm's past with every trial of it; about 66 count.
_TRIALS = 0.985

# Decay of all arms' past with every step: an arm not tried for long is uncertain again.
_TIME = 0.99

# Trials that the prior of an arm's gain counts for.
_BELIEF = 1.0

# Decay of a sequence's own past with every step.
_OWN_TIME = 0.98

# Trials, and for all arms together tokens, that shared beliefs count for beside its own.
_OWN_BELIEF = 4.0


class _Own:
    def __init__(self, arms: int) -> None:
        self._trials: ProbArray = np.zeros(arms)
        self._tokens: ProbArray = np.zeros(arms)

    def add(self, arm: int, tokens: int) -> None:
        self._trials *= _OWN_TIME
        self._tokens *= _OWN_TIME
        self._trials[arm] += 1
        self._tokens[arm] += tokens

    def means(self, shared: ProbArray) -> ProbArray:
        # An arm that the sequence has not tried: the shared gain, scaled by how the others did
        # for it.
        believed = float(self._trials @ shared)
        factor = (self._tokens.sum() + _OWN_BELIEF) / (believed + _OWN_BELIEF)
        means: ProbArray = self._tokens + _OWN_BELIEF * factor * shared
        return means / (self._trials + _OWN_BELIEF)


class Arms:
    """Choose an arm per sequence and step; deterministic given the observations."""

    def __init__(self, arms: int, seed: int = 0) -> None:
        """Start without observations; `seed` is of all draws, made apart per sequence id."""
        self._seed = seed
        self._steps = 0
        self._history = np.zeros((3, arms))  # trials, tokens, and their squares; decayed
        self._prices: dict[int, Prices] = {}
        self._own: dict[int, _Own] = {}

    def choose(self, ids: List[int], open_arms: List[List[int]], guess: ProbArray) -> list[int]:
        """Choose an arm for each sequence of a batch.

        Args:
            ids: of the sequences.
            open_arms: per sequence, the arms that it may take, at least one.
            guess: float64 `[arms]`, prior of the tokens that each arm gains a step, beside the one
                that every step commits. An arm of 0 gains nothing.
        """
        if not len(ids):
            return []
        prices = self._prices_for(len(ids))
        price = prices.rate * prices.shares
        means, spreads = self._beliefs(guess)
        self._steps += 1
        chosen = []
        for id, arms in zip(ids, open_arms, strict=True):
            draws = np.random.default_rng([self._seed, id, self._steps]).standard_normal(len(means))
            own = self._own.get(id)
            gains = means if own is None else own.means(means)
            worth = gains + spreads * draws - price
            chosen.append(max(arms, key=worth.__getitem__))  # equal worth: the first
        return chosen

    def observe(self, ids: List[int], arms: List[int], gained: List[int], seconds: float) -> None:
        """Learn from a step: per sequence its arm and the tokens gained by it, and the time."""
        self._prices_for(len(ids)).add(arms, len(ids) + sum(gained), seconds)
        self._history *= _TIME
        for id, arm, tokens in zip(ids, arms, gained, strict=True):
            self._own.setdefault(id, _Own(self._history.shape[1])).add(arm, tokens)
            past = self._history[:, arm]
            self._history[:, arm] = _TRIALS * past + (1, tokens, tokens**2)

    def close(self, id: int) -> None:
        self._own.pop(id, None)

    def _beliefs(self, guess: ProbArray) -> tuple[ProbArray, ProbArray]:
        # Per arm, the mean of the tokens it gains, and its standard error.
        # The guess may be wrong by as much as itself.
        trials, tokens, squares = self._history + _BELIEF * np.array(
            [np.ones(len(guess)), guess, 2 * guess**2]
        )
        means = tokens / trials
        return means, np.sqrt(np.maximum(squares / trials - means**2, 0.0) / trials)

    def _prices_for(self, sequences: int) -> Prices:
        return self._prices.setdefault(sequences, Prices(self._history.shape[1]))
