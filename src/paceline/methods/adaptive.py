"""Adaptive draft length (ADL) of DiffuSpec (Li et al. 2025, arXiv:2510.02358), from moving averages
of the length G that was drafted and the length A that was accepted:
clip(floor(G) + rise * [A >= G], least, depth), and the longest at first. Only past steps count, so
every guarantee holds.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar, NamedTuple

from paceline.core import tree as trees
from paceline.core.options import require
from paceline.core.types import Budget
from paceline.policy.controller import Controller, shallower
from paceline.sampling.generation import Generation, VerifiedDraft


class _Lengths(NamedTuple):
    drafted: float
    accepted: float


class Adaptive(Controller):
    """Set a draft length per sequence from its last drafts.

    A drafter that fills its budget is asked for the longest draft at every step: what shortens
    drafts is that it ends them early, as DiffuSpec does at an end token.
    """

    name: ClassVar[str] = "adaptive"
    paper = "DiffuSpec, Li et al. 2025, arXiv:2510.02358"

    def __init__(
        self,
        memory: float = 0.5,
        rise: int = 10,
        least: int = 20,
        *,
        nodes: int = 30,
        depth: int = 30,
    ) -> None:
        """Set the rule's constants, by default the paper's.

        Args:
            memory: weight of the past in the averages, in [0, 1).
            rise: tokens that are added while whole drafts are accepted; at least 1.
            least: shortest draft to ask for; `depth` if that is less.
            nodes: largest draft; a shorter one has proportionally fewer nodes.
            depth: longest draft to ask for.

        Raises:
            InvalidOption: a constant is out of range.
        """
        require(0 <= memory < 1, "memory", memory, "in [0, 1)")
        require(rise >= 1, "rise", rise, "1 or more")
        require(least >= 1, "least", least, "1 or more")
        self._memory = memory
        self._rise = rise
        self._least = min(least, depth)
        self._limit = Budget(nodes, depth)
        self._lengths: dict[int, _Lengths] = {}

    def budgets(self, sequences: Sequence[Generation]) -> list[Budget]:
        return [shallower(self._limit, self._length(sequence)) for sequence in sequences]

    def learn(self, verified: VerifiedDraft) -> None:
        sequence, draft, verdict, _ = verified
        if len(draft):
            drafted, accepted = trees.deepest(draft), len(verdict.path)
            self._lengths[sequence.id] = self._moved(sequence, drafted, accepted)

    def close(self, sequence: Generation) -> None:
        self._lengths.pop(sequence.id, None)

    def _length(self, sequence: Generation) -> int:
        lengths = self._lengths.get(sequence.id)
        if lengths is None:
            return self._limit.depth
        whole = lengths.accepted >= lengths.drafted
        return min(max(int(lengths.drafted) + self._rise * whole, self._least), self._limit.depth)

    def _moved(self, sequence: Generation, drafted: int, accepted: int) -> _Lengths:
        last = self._lengths.get(sequence.id)
        if last is None:
            return _Lengths(drafted, accepted)
        fresh = 1 - self._memory
        return _Lengths(
            self._memory * last.drafted + fresh * drafted,
            self._memory * last.accepted + fresh * accepted,
        )
