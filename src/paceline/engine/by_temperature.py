"""Separate drafter and controller for greedy and for sampled requests.

Sampled text is less predictable, so other drafts pay. The choice depends on request parameters
alone, so every guarantee holds.
"""

from __future__ import annotations

from collections.abc import Sequence as List
from operator import attrgetter
from typing import ClassVar, NamedTuple, TypeVar

from paceline.core import tree as trees
from paceline.core.target import Output
from paceline.core.types import Budget, LogitArray, Needs, TokenTree, Verdict
from paceline.drafters.base import Drafter
from paceline.drafters.combine.base import CompositeDrafter, union_needs
from paceline.policy.controller import Controller
from paceline.sampling.sequence import Sequence

Part = TypeVar("Part")
T = TypeVar("T")

_temperature = attrgetter("params.temperature")  # 0 is greedy; read several times a step


class _Share(NamedTuple):
    # Places of the sequences of one kind in a batch; None for all of them.
    places: list[int] | None

    def of(self, values: List[T]) -> List[T]:
        return values if self.places is None else [values[place] for place in self.places]

    def put(self, values: List[T], out: list[T]) -> None:
        for place, value in zip(self.places or range(len(out)), values, strict=True):
            out[place] = value


def _shares(parts: tuple[Part, ...], sequences: List[Sequence]) -> list[tuple[Part, _Share]]:
    # Batches of one kind are passed on as they are.
    sampled = list(map(bool, map(_temperature, sequences)))
    if not any(sampled) or all(sampled):
        return [(parts[any(sampled)], _Share(None))]
    places = range(len(sequences))
    return [
        (part, _Share([place for place in places if sampled[place] == kind]))
        for kind, part in enumerate(parts)
    ]


class DraftersByKind(CompositeDrafter):
    """Dispatch to one drafter for greedy and one for sampled requests."""

    name: ClassVar[str] = "by-kind"

    def __init__(self, greedy: Drafter, sampled: Drafter) -> None:
        super().__init__([greedy, sampled])
        self.kind = greedy.kind

    def open(self, sequence: Sequence) -> None:
        self._of(sequence).open(sequence)

    def read(self, sequence: Sequence, features: LogitArray) -> None:
        part = self._of(sequence)
        if part.needs.features:
            part.read(sequence, features)

    def needs_of(self, sequences: List[Sequence]) -> Needs:
        shares = _shares(self.parts, sequences)
        needs = [part.needs_of(share.of(sequences)) for part, share in shares]
        return needs[0] if len(needs) == 1 else union_needs(needs)

    def propose(self, sequences: List[Sequence], budgets: List[Budget]) -> list[TokenTree]:
        drafts = [trees.EMPTY] * len(sequences)
        for part, share in _shares(self.parts, sequences):
            share.put(part.propose(share.of(sequences), share.of(budgets)), drafts)
        return drafts

    def observe(
        self,
        sequences: List[Sequence],
        drafts: List[TokenTree],
        verdicts: List[Verdict],
        outputs: List[Output],
    ) -> None:
        for part, share in _shares(self.parts, sequences):
            part.observe(
                *(share.of(sequences), share.of(drafts)), *(share.of(verdicts), share.of(outputs))
            )

    def close(self, sequence: Sequence) -> None:
        self._of(sequence).close(sequence)

    def _of(self, sequence: Sequence) -> Drafter:
        return self.parts[not sequence.params.greedy]


class ControllersByKind(Controller):
    """Dispatch to one controller for each. In mixed batches each counts the other's roots as given
    rows, and learns no times.
    """

    name: ClassVar[str] = "by-kind"

    def __init__(self, greedy: Controller, sampled: Controller) -> None:
        self.parts = (greedy, sampled)
        self.costs = greedy.costs or sampled.costs

    def budgets(self, sequences: List[Sequence]) -> list[Budget]:
        out = [Budget(0, 0)] * len(sequences)
        for part, share in _shares(self.parts, sequences):
            mine = share.of(sequences)
            part.beside, part.queue = self.beside + len(sequences) - len(mine), self.queue
            share.put(part.budgets(mine), out)
        return out

    def select(self, sequences: List[Sequence], drafts: List[TokenTree]) -> list[TokenTree]:
        out = list(drafts)
        for part, share in _shares(self.parts, sequences):
            share.put(part.select(share.of(sequences), share.of(drafts)), out)
        return out

    def observe(
        self,
        sequences: List[Sequence],
        drafts: List[TokenTree],
        verdicts: List[Verdict],
        draft_seconds: float,
        forward_seconds: float,
    ) -> None:
        for part, share in _shares(self.parts, sequences):
            mine = share.of(sequences)
            part.observe(
                *(mine, share.of(drafts), share.of(verdicts)),
                *(draft_seconds * len(mine) / len(sequences), forward_seconds),
            )

    def close(self, sequence: Sequence) -> None:
        self.parts[not sequence.params.greedy].close(sequence)
