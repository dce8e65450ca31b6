"""Plain decoding: empty drafts."""

from __future__ import annotations

from collections.abc import Sequence as List
from typing import ClassVar

from paceline import tree as trees
from paceline.drafters.base import Drafter
from paceline.sequence import Sequence
from paceline.types import Budget, TokenTree


class NoDrafter(Drafter):
    """Baseline without drafts: every step commits one token."""

    name: ClassVar[str] = "none"

    def propose(self, sequences: List[Sequence], budgets: List[Budget]) -> list[TokenTree]:
        return [trees.EMPTY] * len(sequences)
