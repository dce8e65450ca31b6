"""Result of a decoding step."""

from __future__ import annotations

from typing import NamedTuple

from paceline.sequence import Sequence
from paceline.types import FinishReason


class Commit(NamedTuple):
    """Tokens that one step added to a sequence (already extended), at least one.

    `sources` names per token its drafter, or None if the target chose it.
    """

    sequence: Sequence
    tokens: tuple[int, ...]
    sources: tuple[str | None, ...]
    finish_reason: FinishReason | None
