"""What a step of any decoder did to one sequence."""

from __future__ import annotations

from typing import NamedTuple

from paceline.sequence import Sequence
from paceline.types import FinishReason


class Commit(NamedTuple):
    """Tokens that one step added to a sequence.

    Attributes:
        sequence: the sequence, already extended.
        tokens: the new tokens, at least one.
        sources: per token, the drafter it came from, or None if the target chose it.
        finish_reason: why the sequence ended with them, or None.
    """

    sequence: Sequence
    tokens: tuple[int, ...]
    sources: tuple[str | None, ...]
    finish_reason: FinishReason | None
