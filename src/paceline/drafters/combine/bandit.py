"""Bandit over drafters: picks one per sequence and step, by accepted tokens per second.

The choice uses past steps and its own random draws only, so it is predictable and exact for
p/q rules too. All drafters observe every step. Arm statistics: `paceline.drafters.combine.bandit`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from time import perf_counter
from typing import ClassVar

import numpy as np

from paceline.core import tree as trees
from paceline.core.options import require
from paceline.core.types import Budget, IntArray, ProbArray, TokenTree
from paceline.drafters.base import Drafter, NoDrafter
from paceline.drafters.combine.base import CompositeDrafter
from paceline.errors import InvalidOption
from paceline.policy.constants import (
    ARM_BELIEF,
    ARM_PRIOR,
    ARM_STEP_MEMORY,
    ARM_TRIAL_MEMORY,
    CHOICE_COST_BELIEF,
    CHOICE_COST_HOPE,
    CHOICE_COST_MEMORY,
    DRAFT_OUTLIER,
    OWN_ARM_BELIEF,
    OWN_ARM_MEMORY,
)
from paceline.sampling.generation import Generation, VerifiedDraft


class Prices:
    """Seconds by choice, for batches of one size. An untried choice gets half the mean cost."""

    def __init__(self, choices: int) -> None:
        self._gram: ProbArray = np.zeros((choices, choices))
        self._moments: ProbArray = np.zeros(choices)
        self._tokens = self._seconds = self._sequences = 0.0

    def add(self, chosen: Sequence[int] | IntArray, tokens: int, seconds: float) -> None:
        """Add a step: the choice of each sequence, tokens committed, time taken."""
        counts = np.bincount(chosen, minlength=len(self._moments)).astype(np.float64)
        if self._seconds:
            usual = max(float(counts @ self.shares), len(chosen) * self._mean)
            seconds = min(seconds, DRAFT_OUTLIER * usual)
        self._gram = CHOICE_COST_MEMORY * self._gram + np.outer(counts, counts)
        self._moments = CHOICE_COST_MEMORY * self._moments + counts * seconds
        self._tokens = CHOICE_COST_MEMORY * self._tokens + tokens
        self._seconds = CHOICE_COST_MEMORY * self._seconds + seconds
        self._sequences = CHOICE_COST_MEMORY * self._sequences + len(chosen)

    @property
    def shares(self) -> ProbArray:
        """Return float64 `[choices]`, seconds that a sequence adds to a step by each choice."""
        ridge = CHOICE_COST_BELIEF * np.eye(len(self._moments))
        seconds = self._moments + CHOICE_COST_BELIEF * CHOICE_COST_HOPE * self._mean
        return np.linalg.solve(self._gram + ridge, seconds).astype(np.float64, copy=False)

    @property
    def _mean(self) -> float:
        return self._seconds / max(self._sequences, 1.0)

    @property
    def rate(self) -> float:
        """Return committed tokens per second of the batch; 0 before anything was observed."""
        return self._tokens / self._seconds if self._seconds else 0.0


class _Own:
    def __init__(self, arms: int) -> None:
        self._trials: ProbArray = np.zeros(arms)
        self._tokens: ProbArray = np.zeros(arms)

    def add(self, arm: int, tokens: int) -> None:
        self._trials *= OWN_ARM_MEMORY
        self._tokens *= OWN_ARM_MEMORY
        self._trials[arm] += 1
        self._tokens[arm] += tokens

    def means(self, shared: ProbArray) -> ProbArray:
        # An arm that the sequence has not tried: the shared gain, scaled by how the others did
        # for it.
        believed = float(self._trials @ shared)
        factor = (self._tokens.sum() + OWN_ARM_BELIEF) / (believed + OWN_ARM_BELIEF)
        means: ProbArray = self._tokens + OWN_ARM_BELIEF * factor * shared
        return means / (self._trials + OWN_ARM_BELIEF)


class Arms:
    """Choose an arm per sequence and step; deterministic given the observations."""

    def __init__(self, arms: int, seed: int = 0) -> None:
        """Start without observations; `seed` is of all draws, made apart per sequence id."""
        self._seed = seed
        self._steps = 0
        self._history = np.zeros((3, arms))  # trials, tokens, and their squares; decayed
        self._prices: dict[int, Prices] = {}
        self._own: dict[int, _Own] = {}

    def choose(
        self, ids: Sequence[int], open_arms: Sequence[Sequence[int]], guess: ProbArray
    ) -> list[int]:
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

    def observe(
        self, ids: Sequence[int], arms: Sequence[int], gained: Sequence[int], seconds: float
    ) -> None:
        """Learn from a step: per sequence its arm and the tokens gained by it, and the time."""
        self._prices_for(len(ids)).add(arms, len(ids) + sum(gained), seconds)
        self._history *= ARM_STEP_MEMORY
        for id, arm, tokens in zip(ids, arms, gained, strict=True):
            self._own.setdefault(id, _Own(self._history.shape[1])).add(arm, tokens)
            past = self._history[:, arm]
            self._history[:, arm] = ARM_TRIAL_MEMORY * past + (1, tokens, tokens**2)

    def close(self, id: int) -> None:
        self._own.pop(id, None)

    def _beliefs(self, guess: ProbArray) -> tuple[ProbArray, ProbArray]:
        # Per arm, the mean of the tokens it gains, and its standard error.
        # The guess may be wrong by as much as itself.
        trials, tokens, squares = self._history + ARM_BELIEF * np.array(
            [np.ones(len(guess)), guess, 2 * guess**2]
        )
        means = tokens / trials
        return means, np.sqrt(np.maximum(squares / trials - means**2, 0.0) / trials)

    def _prices_for(self, sequences: int) -> Prices:
        return self._prices.setdefault(sequences, Prices(self._history.shape[1]))


_NOTHING = Budget(0, 0)


class Choose(CompositeDrafter):
    """Drafts with the drafter of the highest recent throughput for the sequence."""

    name: ClassVar[str] = "choose"

    def __init__(
        self, parts: Sequence[Drafter], *, seed: int = 0, clock: Callable[[], float] = perf_counter
    ) -> None:
        """Set the arms. Raises InvalidOption for a bad number of drafters, or mixed draft kinds."""
        super().__init__(parts)
        require(seed >= 0, "seed", seed, "0 or more")
        drafting = [part for part in parts if not isinstance(part, NoDrafter)]
        kinds = {part.kind for part in drafting}
        if len(kinds) > 1:
            named = ", ".join(f"'{p.name}' {p.kind or 'deterministic'}" for p in drafting)
            raise InvalidOption(
                f"for this verifier the drafters make drafts of different kinds ({named}): use "
                "verifier 'coupled', or drafters of one kind"
            )
        self.kind = kinds.pop() if kinds else None
        self._guess = np.array([0.0 if isinstance(p, NoDrafter) else ARM_PRIOR for p in parts])
        self._seed = seed
        self._clock = clock
        self._arms = Arms(len(parts), seed)
        self._chosen: dict[int, int] = {}
        self._begin = 0.0

    def reset(self) -> None:
        super().reset()
        self._arms = Arms(len(self.parts), self._seed)

    def propose(
        self, sequences: Sequence[Generation], budgets: Sequence[Budget]
    ) -> list[TokenTree]:
        self._begin = self._clock()
        pairs = list(zip(sequences, budgets, strict=True))
        ids = [s.id for s, budget in pairs if budget.nodes > 0 and budget.depth > 0]
        arms = [range(len(self.parts))] * len(ids)
        self._chosen = dict(zip(ids, self._arms.choose(ids, arms, self._guess), strict=True))
        out = [trees.EMPTY] * len(pairs)
        for index, part in enumerate(self.parts):
            turns = [self._chosen.get(s.id) == index for s in sequences]
            asked = [b if turn else _NOTHING for b, turn in zip(budgets, turns, strict=True)]
            drafts = part.propose(sequences, asked)
            out = [d if turn else o for d, o, turn in zip(drafts, out, turns, strict=True)]
        return out

    def observe(self, step: Sequence[VerifiedDraft]) -> None:
        seconds = self._clock() - self._begin
        gained = {each.sequence.id: len(each.verdict.path) for each in step}
        ids = list(self._chosen)
        if ids:
            arms = list(self._chosen.values())
            self._arms.observe(ids, arms, [gained[id] for id in ids], seconds)
        super().observe(step)

    def close(self, sequence: Generation) -> None:
        super().close(sequence)
        self._arms.close(sequence.id)
