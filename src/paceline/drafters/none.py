"""Plain decoding: proposes nothing."""

from __future__ import annotations

from collections.abc import Sequence as List
from typing import ClassVar

from paceline import tree as trees
from paceline.drafters.base import Drafter
from paceline.sequence import Sequence
from paceline.types import Budget, TokenTree


class NoDrafter(Drafter):
    """The baseline: every step commits one token."""

    name: ClassVar[str] = "none"

    def propose(self, sequences: List[Sequence], budgets: List[Budget]) -> list[TokenTree]:
        """An empty draft for every sequence."""
        return [trees.EMPTY] * len(sequences)
