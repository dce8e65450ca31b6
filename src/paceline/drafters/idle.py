"""Sampling of plain steps for drafters that learn from the target's logits."""

from __future__ import annotations

from collections.abc import Sequence

from paceline.types import Budget

_SELDOM = 8


class Idle:
    """Count steps without drafts, and let the drafter learn from one in eight of them.

    Ranking logits rows in every plain step would slow decoding down where drafts do not pay.
    """

    def __init__(self) -> None:
        self._steps = 0

    def rests(self, budgets: Sequence[Budget]) -> bool:
        """Return whether the drafter skips the step with these budgets."""
        if any(budget.nodes and budget.depth for budget in budgets):
            self._steps = 0
            return False
        self._steps += 1
        return self._steps % _SELDOM != 0
