"""A bandit whose arms gain tokens and cost time, for many sequences in one batch.

To commit most tokens per second, each sequence takes the arm that gains most beyond its price,

    tokens gained - rate * seconds,

with `rate` the tokens per second of the batch in the long run: what its seconds are worth
elsewhere (Dinkelbach 1967, "On nonlinear fractional programming"). Seconds are learned per size of
batch, so prices rise as the batch fills the machine. The tokens that an arm gains are uncertain,
and are drawn from what is believed of them: discounted Thompson sampling with Gaussian beliefs (Qi
et al. 2023, arXiv:2305.10718). So arms that may be best are tried, and old news is forgotten.

Beliefs are shared by all sequences. What a sequence gained of late by each arm is put beside them,
and where it has not tried an arm, what all gain by it is scaled by how it fared with others.
"""

from __future__ import annotations

from collections.abc import Sequence as List

import numpy as np

from paceline.controllers.prices import Prices
from paceline.types import ProbArray

_TRIALS = 0.985
"""Decay of an arm's past with every trial of it; about 66 count."""

_TIME = 0.99
"""Decay of all arms' past with every step: what was not tried for long is uncertain again."""

_BELIEF = 1.0
"""Trials that the guess of an arm's gain counts for."""

_OWN_TIME = 0.98
"""Decay of a sequence's own past with every step."""

_OWN_BELIEF = 4.0
"""Trials, and for all arms together tokens, that shared beliefs count for beside its own."""


class _Own:
    """How often one sequence took each arm, and what it gained; decayed."""

    def __init__(self, arms: int) -> None:
        self._trials: ProbArray = np.zeros(arms)
        self._tokens: ProbArray = np.zeros(arms)

    def add(self, arm: int, tokens: int) -> None:
        self._trials *= _OWN_TIME
        self._tokens *= _OWN_TIME
        self._trials[arm] += 1
        self._tokens[arm] += tokens

    def means(self, shared: ProbArray) -> ProbArray:
        """Tokens that each arm gains for this sequence, given what it gains for all."""
        believed = float(self._trials @ shared)
        factor = (self._tokens.sum() + _OWN_BELIEF) / (believed + _OWN_BELIEF)
        means: ProbArray = self._tokens + _OWN_BELIEF * factor * shared
        return means / (self._trials + _OWN_BELIEF)


class Arms:
    """Chooses an arm per sequence and step; the same observations give the same choices."""

    def __init__(self, arms: int, seed: int = 0) -> None:
        """Know nothing.

        Args:
            arms: how many there are.
            seed: of all draws; sequences draw apart, by their ids.
        """
        self._seed = seed
        self._steps = 0
        self._history = np.zeros((3, arms))  # trials, tokens, and their squares; decayed
        self._prices: dict[int, Prices] = {}
        self._own: dict[int, _Own] = {}

    def choose(self, ids: List[int], open_arms: List[List[int]], guess: ProbArray) -> list[int]:
        """An arm for each sequence of a batch.

        Args:
            ids: of the sequences.
            open_arms: per sequence, the arms that it may take, at least one.
            guess: float64 `[arms]`, tokens that each arm gains a step, beside the one that every
                step commits, where nothing else is known of it. An arm of 0 gains nothing.
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
        """Forget a sequence."""
        self._own.pop(id, None)

    def _beliefs(self, guess: ProbArray) -> tuple[ProbArray, ProbArray]:
        """Per arm, the mean of the tokens it gains, and how uncertain that is."""
        # The guess may be wrong by as much as itself.
        trials, tokens, squares = self._history + _BELIEF * np.array(
            [np.ones(len(guess)), guess, 2 * guess**2]
        )
        means = tokens / trials
        return means, np.sqrt(np.maximum(squares / trials - means**2, 0.0) / trials)

    def _prices_for(self, sequences: int) -> Prices:
        return self._prices.setdefault(sequences, Prices(self._history.shape[1]))
