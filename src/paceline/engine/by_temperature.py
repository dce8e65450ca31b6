"""Separate drafter and controller for greedy and for sampled requests.

Sampled text is less predictable, so other drafts pay. The choice depends on request parameters
alone, so every guarantee holds.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar, TypeVar

from paceline.core import tree as trees
from paceline.core.types import Budget, LogitArray, Needs, TokenTree
from paceline.drafters.base import Drafter
from paceline.drafters.combine.base import CompositeDrafter, union_needs
from paceline.policy.controller import Controller
from paceline.sampling.generation import Generation, VerifiedDraft

Part = TypeVar("Part")
T = TypeVar("T")


def _shares(
    parts: tuple[Part, ...], sequences: Sequence[Generation]
) -> list[tuple[Part, list[int]]]:
    # Places of the sequences of each part that has any.
    kinds = [not sequence.params.greedy for sequence in sequences]
    shares = [[place for place, each in enumerate(kinds) if each == kind] for kind in (0, 1)]
    return [(part, share) for part, share in zip(parts, shares, strict=True) if share]


def _gather(share: list[int], values: Sequence[T]) -> list[T]:
    return [values[place] for place in share]


def _scatter(share: list[int], values: Sequence[T], out: list[T]) -> None:
    for place, value in zip(share, values, strict=True):
        out[place] = value


class DraftersByKind(CompositeDrafter):
    """Dispatch to one drafter for greedy and one for sampled requests."""

    name: ClassVar[str] = "by-kind"

    def __init__(self, greedy: Drafter, sampled: Drafter) -> None:
        super().__init__([greedy, sampled])
        self.kind = greedy.kind

    def open(self, sequence: Generation) -> None:
        self._part(sequence).open(sequence)

    def read(self, sequence: Generation, features: LogitArray) -> None:
        part = self._part(sequence)
        if part.needs.features:
            part.read(sequence, features)

    def needs_of(self, sequences: Sequence[Generation]) -> Needs:
        shares = _shares(self.parts, sequences)
        return union_needs([part.needs_of(_gather(share, sequences)) for part, share in shares])

    def propose(
        self, sequences: Sequence[Generation], budgets: Sequence[Budget]
    ) -> list[TokenTree]:
        drafts, self.tried = [trees.EMPTY] * len(sequences), 0.0
        for part, share in _shares(self.parts, sequences):
            _scatter(
                share, part.propose(_gather(share, sequences), _gather(share, budgets)), drafts
            )
            self.tried += part.tried
        return drafts

    def observe(self, step: Sequence[VerifiedDraft]) -> None:
        for part, share in _shares(self.parts, [each.sequence for each in step]):
            part.observe(_gather(share, step))

    def close(self, sequence: Generation) -> None:
        self._part(sequence).close(sequence)

    def _part(self, sequence: Generation) -> Drafter:
        return self.parts[not sequence.params.greedy]


class ControllersByKind(Controller):
    """Dispatch to one controller for each. In mixed batches each counts the other's roots as given
    rows, and learns no times.
    """

    name: ClassVar[str] = "by-kind"

    def __init__(self, greedy: Controller, sampled: Controller) -> None:
        self.parts = (greedy, sampled)
        self.costs = greedy.costs or sampled.costs

    def budgets(self, sequences: Sequence[Generation]) -> list[Budget]:
        out = [Budget(0, 0)] * len(sequences)
        for part, share in _shares(self.parts, sequences):
            mine = _gather(share, sequences)
            part.beside, part.queue = self.beside + len(sequences) - len(mine), self.queue
            _scatter(share, part.budgets(mine), out)
        return out

    def select(
        self, sequences: Sequence[Generation], drafts: Sequence[TokenTree]
    ) -> list[TokenTree]:
        out = list(drafts)
        for part, share in _shares(self.parts, sequences):
            _scatter(share, part.select(_gather(share, sequences), _gather(share, drafts)), out)
        return out

    def observe(
        self, step: Sequence[VerifiedDraft], draft_seconds: float, forward_seconds: float
    ) -> None:
        for part, share in _shares(self.parts, [each.sequence for each in step]):
            mine = _gather(share, step)
            part.observe(mine, draft_seconds * len(mine) / len(step), forward_seconds)

    def close(self, sequence: Generation) -> None:
        self.parts[not sequence.params.greedy].close(sequence)
