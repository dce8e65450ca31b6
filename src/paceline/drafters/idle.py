"""Which plain steps a drafter learns from that reads the target's logits."""

from __future__ import annotations

from collections.abc import Sequence

from paceline.types import Budget

_SELDOM = 8


class Idle:
    """Counts steps in which nothing is asked of a drafter. It learns from one in eight.

    Ranking a row of logits costs a fiftieth of a small model's step. Where drafts do not pay, a
    drafter that learned from every step would be what makes decoding slower.
    """

    def __init__(self) -> None:
        """Nothing was counted."""
        self._steps = 0

    def rests(self, budgets: Sequence[Budget]) -> bool:
        """Whether the step that begins with these budgets is left out."""
        if any(budget.nodes and budget.depth for budget in budgets):
            self._steps = 0
            return False
        self._steps += 1
        return self._steps % _SELDOM != 0
