"""Separate drafter and controller for greedy and for sampled requests.

Sampled text is less predictable, so other drafts pay. The choice depends on request parameters
alone, so every guarantee holds.
"""

from __future__ import annotations

from collections.abc import Iterator
from collections.abc import Sequence as List
from operator import attrgetter
from typing import ClassVar, TypeVar

from paceline.core import tree as trees
from paceline.core.target import Output
from paceline.core.types import Budget, LogitArray, Needs, TokenTree, Verdict
from paceline.drafters.base import Drafter
from paceline.drafters.combine.base import CompositeDrafter, union_needs
from paceline.policy.controller import Controller
from paceline.sampling.sequence import Sequence

T = TypeVar("T")

_temperature = attrgetter("params.temperature")  # 0 is greedy; read several times a step


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
        if (alone := _only(sequences)) is not None:
            return self.parts[alone].needs_of(sequences)
        shares = _shares(sequences)
        return union_needs([self.parts[i].needs_of(_at(places, sequences)) for i, places in shares])

    def propose(self, sequences: List[Sequence], budgets: List[Budget]) -> list[TokenTree]:
        if (alone := _only(sequences)) is not None:
            return self.parts[alone].propose(sequences, budgets)
        drafts = [trees.EMPTY] * len(sequences)
        for index, places in _shares(sequences):
            part = self.parts[index]
            found = part.propose(_at(places, sequences), _at(places, budgets))
            for place, draft in zip(places, found, strict=True):
                drafts[place] = draft
        return drafts

    def observe(
        self,
        sequences: List[Sequence],
        drafts: List[TokenTree],
        verdicts: List[Verdict],
        outputs: List[Output],
    ) -> None:
        if (alone := _only(sequences)) is not None:
            self.parts[alone].observe(sequences, drafts, verdicts, outputs)
            return
        for index, places in _shares(sequences):
            self.parts[index].observe(
                *(_at(places, sequences), _at(places, drafts)),
                *(_at(places, verdicts), _at(places, outputs)),
            )

    def close(self, sequence: Sequence) -> None:
        self._of(sequence).close(sequence)

    def _of(self, sequence: Sequence) -> Drafter:
        return self.parts[_index(sequence)]


class ControllersByKind(Controller):
    """Dispatch to one controller for each. In mixed batches each counts the other's roots as given
    rows, and learns no times.
    """

    name: ClassVar[str] = "by-kind"

    def __init__(self, greedy: Controller, sampled: Controller) -> None:
        self.parts = (greedy, sampled)
        self.costs = greedy.costs or sampled.costs

    def budgets(self, sequences: List[Sequence]) -> list[Budget]:
        if (alone := _only(sequences)) is not None:
            self.parts[alone].beside, self.parts[alone].queue = self.beside, self.queue
            return self.parts[alone].budgets(sequences)
        out = [Budget(0, 0)] * len(sequences)
        for index, places in _shares(sequences):
            part = self.parts[index]
            part.beside, part.queue = self.beside + len(sequences) - len(places), self.queue
            for place, budget in zip(places, part.budgets(_at(places, sequences)), strict=True):
                out[place] = budget
        return out

    def select(self, sequences: List[Sequence], drafts: List[TokenTree]) -> list[TokenTree]:
        if (alone := _only(sequences)) is not None:
            kept = self.parts[alone].select(sequences, drafts)
            self.rows = self.parts[alone].rows
            return kept
        out = list(drafts)
        for index, places in _shares(sequences):
            part = self.parts[index]
            kept = part.select(_at(places, sequences), _at(places, drafts))
            for place, draft in zip(places, kept, strict=True):
                out[place] = draft
        self.rows = 0
        return out

    def observe(
        self,
        sequences: List[Sequence],
        drafts: List[TokenTree],
        verdicts: List[Verdict],
        draft_seconds: float,
        forward_seconds: float,
    ) -> None:
        if (alone := _only(sequences)) is not None:
            part = self.parts[alone]
            part.observe(sequences, drafts, verdicts, draft_seconds, forward_seconds)
            return
        for index, places in _shares(sequences):
            self.parts[index].observe(
                _at(places, sequences),
                *(_at(places, drafts), _at(places, verdicts)),
                *(draft_seconds * len(places) / len(sequences), forward_seconds),
            )

    def close(self, sequence: Sequence) -> None:
        self.parts[_index(sequence)].close(sequence)


def _index(sequence: Sequence) -> int:
    return 0 if sequence.params.greedy else 1


def _only(sequences: List[Sequence]) -> int | None:
    # Fast path for batches of one kind; None for mixed ones.
    if not any(map(_temperature, sequences)):
        return 0
    return 1 if all(map(_temperature, sequences)) else None


def _shares(sequences: List[Sequence]) -> Iterator[tuple[int, list[int]]]:
    for index in (0, 1):
        places = [place for place, each in enumerate(sequences) if _index(each) == index]
        if places:
            yield index, places


def _at(places: list[int], values: List[T]) -> list[T]:
    return [values[place] for place in places]
