"""Draft length from recent acceptance, as in DiffuSpec (Li et al. 2025, arXiv:2510.02358).

Its adaptive draft length (ADL) keeps moving averages G of the drafted length and A of the accepted
one, with new values weighing half, and asks next for

    clip(floor(G) + 10 * [A >= G], 20, 30).

Its drafter ends drafts by itself, so G shrinks with them. Drafters here mostly draft what they are
asked for, and G would never shrink. So 1 + A stands in its place, one token more than was lately
of use; and since an average of accepted lengths never quite gets to the drafted one, most of it
counts as all:

    clip(floor(1 + A) + rise * [A >= 0.8 * G], least, depth).

With nothing accepted the length falls to `least` in a few steps; once whole drafts stand it rises
again by `rise` at a time. Steps without a draft say nothing and change nothing. Only steps that
are over have a say, so the length is predictable and every guarantee is kept.
"""

from __future__ import annotations

from collections.abc import Sequence as List
from typing import ClassVar, NamedTuple

from paceline import tree as trees
from paceline.controllers.base import Controller, shallower
from paceline.options import require
from paceline.sequence import Sequence
from paceline.types import Budget, TokenTree, Verdict

_WHOLE = 0.8
"""Share of the drafted length from which drafts count as accepted whole."""


class _Lengths(NamedTuple):
    """Moving averages for one sequence, in tokens."""

    drafted: float
    accepted: float


class Adaptive(Controller):
    """A draft length per sequence that follows what was accepted of its last drafts."""

    name: ClassVar[str] = "adaptive"

    def __init__(
        self,
        memory: float = 0.5,
        rise: int = 2,
        least: int = 1,
        *,
        nodes: int = 8,
        depth: int = 8,
    ) -> None:
        """Set the rule's constants.

        Args:
            memory: weight of the past in the averages, in [0, 1).
            rise: tokens that are added while whole drafts are accepted; at least 1.
            least: shortest draft to ask for, 1 to `depth`.
            nodes: largest draft; a shorter one has proportionally fewer nodes.
            depth: longest draft to ask for.

        Raises:
            InvalidOption: a constant is out of range.
        """
        require(0 <= memory < 1, "memory", memory, "in [0, 1)")
        require(rise >= 1, "rise", rise, "1 or more")
        require(1 <= least <= depth, "least", least, f"1 to the greatest depth, {depth}")
        self._memory = memory
        self._rise = rise
        self._least = least
        self._limit = Budget(nodes, depth)
        self._lengths: dict[int, _Lengths] = {}

    def budgets(self, sequences: List[Sequence]) -> list[Budget]:
        """The length of the moment, per sequence; half of the longest to begin with."""
        return [shallower(self._limit, self._length(sequence)) for sequence in sequences]

    def observe(
        self,
        sequences: List[Sequence],
        drafts: List[TokenTree],
        verdicts: List[Verdict],
        draft_seconds: float,
        forward_seconds: float,
    ) -> None:
        """Move the averages of the sequences that had a draft."""
        for sequence, draft, verdict in zip(sequences, drafts, verdicts, strict=True):
            if len(draft):
                drafted, accepted = trees.deepest(draft), len(verdict.path)
                self._lengths[sequence.id] = self._moved(sequence, drafted, accepted)

    def close(self, sequence: Sequence) -> None:
        """Forget the sequence's averages."""
        self._lengths.pop(sequence.id, None)

    def _length(self, sequence: Sequence) -> int:
        lengths = self._lengths.get(sequence.id)
        if lengths is None:
            return max(self._least, (1 + self._limit.depth) // 2)
        whole = lengths.accepted >= _WHOLE * lengths.drafted
        length = int(1 + lengths.accepted) + self._rise * whole
        return min(max(length, self._least), self._limit.depth)

    def _moved(self, sequence: Sequence, drafted: int, accepted: int) -> _Lengths:
        last = self._lengths.get(sequence.id)
        if last is None:
            return _Lengths(drafted, accepted)
        fresh = 1 - self._memory
        return _Lengths(
            self._memory * last.drafted + fresh * drafted,
            self._memory * last.accepted + fresh * accepted,
        )
