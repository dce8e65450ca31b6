"""Constraints on a text: grammars and schemas, as the sampler sees them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol, runtime_checkable

from paceline.core.types import BoolArray, LogitArray, ProbArray


class ConstraintState(Protocol):
    """What one sequence may say next. Only `commit` changes it.

    A `path` is drafted tokens behind the committed ones. What was asked before, and in which
    order, changes no answer.
    """

    def mask(self, path: Sequence[int] = ()) -> BoolArray:
        """Return bool `[vocabulary]`: tokens that may follow; end tokens where it may end here.

        After an end token only end tokens may follow. After a path that is not allowed itself,
        which no text takes, anything may.
        """
        ...

    def valid(self, path: Sequence[int]) -> int:
        """Return how many tokens of any path are allowed, from its first on."""
        ...

    def forced(self) -> tuple[int, ...]:
        """Return the tokens that must come next as far as they are known; often none.

        Where several tokens spell the same text, one way of them.
        """
        ...

    def commit(self, tokens: Sequence[int]) -> None:
        """Add committed tokens; raises InvalidOption if one is not allowed."""
        ...


@runtime_checkable
class ReadsLogits(Protocol):
    """A state that forbids more where the model's logits say so."""

    def read(self, logits: LogitArray | ProbArray) -> LogitArray | ProbArray:
        """Return logits `[vocabulary]`, -inf where `ConstraintState.mask` forbids, less some."""
        ...


class Constraint(Protocol):
    """A grammar that is compiled once and may constrain any number of sequences."""

    def start(self) -> ConstraintState:
        """Return the state of a sequence that has said nothing yet."""
        ...
