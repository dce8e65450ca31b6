"""What a head of others gets right at first: its name, and then its drafts, show a wrong target."""

from __future__ import annotations

import logging
import re
from collections.abc import Sequence

_LOG = logging.getLogger(__name__)

_DRAFTS = 256
_FEW = 0.3  # tokens per draft: heads that fit foresee one and more


class FirstDrafts:
    """Count the first drafts of a published head, and say once if next to nothing is right."""

    def __init__(self, head: str, made_for: str, target: str) -> None:
        """Say it if head and target name different models; nothing if one name holds the other.

        Args:
            head: its path, for messages.
            made_for: the target that its config names; empty if none.
            target: name of the model that it drafts for.
        """
        self._head = head
        self._drafts = self._right = self._drafted = 0
        theirs, ours = (
            re.sub(r"[^a-z0-9]", "", each.rpartition("/")[2].lower()) for each in (made_for, target)
        )
        if theirs not in ours and ours not in theirs:
            _LOG.warning(
                "%s was made for %s, and drafts for %s: the text stays the same, drafts may be "
                "wrong",
                head,
                made_for,
                target,
            )

    def note(self, draft: Sequence[int], committed: Sequence[int]) -> bool:
        """Count a chain and what was committed in its place; return whether more are counted."""
        right = 0
        for drafted, token in zip(draft, committed, strict=False):
            if drafted != token:
                break
            right += 1
        self._drafts += 1
        self._right += right
        self._drafted += len(draft)
        if self._drafts < _DRAFTS:
            return True
        mean = self._right / _DRAFTS
        if mean < _FEW:
            _LOG.warning(
                "%s foresees %.2f of %.1f tokens: it was made for another model, or counts layers "
                "otherwise; paceline inspect with --model tries them",
                self._head,
                mean,
                self._drafted / _DRAFTS,
            )
        return False
