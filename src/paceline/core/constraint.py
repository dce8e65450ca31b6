"""Constraints on a text: grammars and schemas, as the sampler sees them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from paceline.core.types import BoolArray


class ConstraintState(Protocol):
    """What one sequence may say next. Only `commit` changes it.

    A `path` is drafted tokens behind the committed ones, all of them allowed.
    """

    def mask(self, path: Sequence[int] = ()) -> BoolArray:
        """Return bool `[vocabulary]`: tokens that may follow; end tokens where it may end here."""
        ...

    def valid(self, path: Sequence[int]) -> int:
        """Return how many tokens of any path are allowed, from its first on."""
        ...

    def forced(self) -> tuple[int, ...]:
        """Return the tokens that must come next as far as they are known; often none."""
        ...

    def commit(self, tokens: Sequence[int]) -> None:
        """Add committed tokens; raises InvalidOption if one is not allowed."""
        ...


class Constraint(Protocol):
    """A grammar that is compiled once and may constrain any number of sequences."""

    def start(self) -> ConstraintState:
        """Return the state of a sequence that has said nothing yet."""
        ...
