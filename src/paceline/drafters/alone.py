"""Wrapper that restricts a drafter to batch size 1, so that batches compute no features for it.

The drafter sees no step of a batch. It continues with the last sequence left, with a gap in
its features; networks tolerate that, since they count positions by the rows they have.
"""

from __future__ import annotations

from collections.abc import Sequence as List

from paceline import tree as trees
from paceline.drafters.base import Drafter
from paceline.sequence import Sequence
from paceline.target import Output
from paceline.types import Budget, LogitArray, Needs, TokenTree, Verdict

_NEEDS = Needs()


class Alone(Drafter):
    """Passes only single-sequence steps to a drafter, which must tolerate gaps."""

    def __init__(self, drafter: Drafter) -> None:
        self.name = drafter.name  # type: ignore[misc]  # it stands for that one
        self.needs = drafter.needs
        self.kind = drafter.kind
        self.follows_noise = drafter.follows_noise
        self._drafter = drafter
        self._behind: set[int] = set()

    def reset(self) -> None:
        self._drafter.reset()

    def needs_of(self, sequences: List[Sequence]) -> Needs:
        return self.needs if len(sequences) == 1 else _NEEDS

    def knows(self, sequence: Sequence) -> bool:
        """Return whether the drafter has seen the end of the sequence."""
        return sequence.id not in self._behind

    def open(self, sequence: Sequence) -> None:
        self._drafter.open(sequence)

    def read(self, sequence: Sequence, features: LogitArray) -> None:
        self._drafter.read(sequence, features)

    def propose(self, sequences: List[Sequence], budgets: List[Budget]) -> list[TokenTree]:
        if len(sequences) == 1 and self.knows(sequences[0]):
            return self._drafter.propose(sequences, budgets)
        return [trees.EMPTY] * len(sequences)

    def observe(
        self,
        sequences: List[Sequence],
        drafts: List[TokenTree],
        verdicts: List[Verdict],
        outputs: List[Output],
    ) -> None:
        if len(sequences) == 1:
            self._behind.discard(sequences[0].id)
            self._drafter.observe(sequences, drafts, verdicts, outputs)
        else:
            self._behind.update([each.id for each in sequences])

    def close(self, sequence: Sequence) -> None:
        self._behind.discard(sequence.id)
        self._drafter.close(sequence)
