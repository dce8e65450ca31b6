"""Draft gate: draft while drafts gain at least what they cost, else ever more rarely.

It decides whether to draft at all (`cost_model.py`), whether to ask a second drafter beside a first
(`drafters/combine/fallback.py`), and which steps without drafts a drafter learns from.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import inf
from typing import Self

from paceline.core.types import Budget
from paceline.policy.acceptance import DecayedMean
from paceline.policy.constants import (
    BEGIN,
    DRAFT_OUTLIER,
    GATE_MEMORY,
    LEARN_EVERY,
    LOSS_SHARE,
    RETRY_SOONER,
)


class DraftGate:
    """Open while the mean gain of a draft is at least its cost, else in one of `interval` steps.

    Attributes:
        gain: mean gain of a draft, in the unit of the costs.
        waited: steps since the last draft.
        steps: steps that the last draft stands for.
        lost: time of drafts beyond what they saved, in plain steps. More than `BEGIN` of it, less
            `LOSS_SHARE` of each step since, is not risked for drafts that should not pay.
    """

    def __init__(self, hope: float, belief: float, first: int, longest: int) -> None:
        """Start with a gain of `hope`, believed like `belief` drafts.

        The interval doubles from `first` to `longest` with each draft that did not pay.
        """
        self.gain = DecayedMean(GATE_MEMORY, hope, belief)
        self.waited = 0
        self.steps = 1
        self.lost = 0.0
        self._first, self._interval, self._longest = first, first, longest

    @classmethod
    def every(cls, steps: int) -> Self:
        """Return a gate that expects no gain."""
        return cls(0.0, 1.0, steps, steps)

    @classmethod
    def of_learning(cls) -> Self:
        """Return a gate for drafters that learn from the target's logits, see `learns`."""
        return cls.every(LEARN_EVERY)

    def open(self, cost: float) -> bool:
        """Count a step, and return whether to draft in it at this cost."""
        self.waited += 1
        self.lost = max(0.0, self.lost - LOSS_SHARE)
        if self.gain.mean >= cost:
            self._interval = min(self._interval, self._first)
        elif self.waited < self._interval or self.lost > BEGIN:
            return False
        self.steps, self.waited = self.waited, 0
        return True

    def learns(self, budgets: Sequence[Budget]) -> bool:
        """Count a step, and return whether there is a draft to make or it is one to learn from."""
        return self.open(0.0 if any(each.nodes and each.depth for each in budgets) else inf)

    def learn(self, gain: float, times: int = 1) -> None:
        """Note the gain of a draft that counts as so many."""
        self.gain.add_run(gain, times)

    def lose(self, steps: float) -> None:
        """Note what a draft took beyond what it saved."""
        self.lost = max(0.0, self.lost + steps)

    def retry(self, paid: bool, drafts: int = 1) -> None:
        """Set the interval after a step with so many drafts: good drafts come in runs."""
        if paid:
            self._interval = max(1, self._interval // RETRY_SOONER) if drafts > 1 else 1
        else:
            self._interval = min(max(self._first, 2 * self._interval), self._longest)


class DraftCost:
    """Mean cost of a draft; the first one counts nothing, since it has much to make ready."""

    def __init__(self) -> None:
        self._mean = DecayedMean(GATE_MEMORY)
        self.begun = False

    def add(self, cost: float) -> float:
        """Return as much of the cost as counts."""
        counted = min(cost, DRAFT_OUTLIER * self.value) if self.value else cost
        if not self.begun:
            self.begun = True
            return 0.0
        self._mean.add(counted)
        return counted

    @property
    def value(self) -> float:
        """Return the mean; 0 until two drafts were made."""
        return self._mean.mean
