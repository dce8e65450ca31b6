"""After Dovetail (Zhang et al. 2024, arXiv:2412.18934): the draft model on another device.

Drafts go over before a forward, and the target waits for them: few tokens, since every row that
a processor verifies costs.
"""

from __future__ import annotations

from collections.abc import Sequence as List
from typing import ClassVar

from paceline.core.types import Budget, TokenTree
from paceline.sampling.sequence import Sequence
from paceline.zoo.schedules.drafting import Scheduled


class Dovetail(Scheduled):
    """Draft elsewhere, then verify here."""

    name: ClassVar[str] = "dovetail"

    def propose(self, sequences: List[Sequence], budgets: List[Budget]) -> list[TokenTree]:
        self._settle()
        return self._sequential(sequences, budgets)
