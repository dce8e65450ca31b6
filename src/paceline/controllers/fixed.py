"""The same budget for every sequence at every step."""

from __future__ import annotations

from collections.abc import Sequence as List
from typing import ClassVar, Self

from paceline.controllers.base import Controller, ControllerContext
from paceline.errors import InvalidOption
from paceline.sequence import Sequence
from paceline.types import Budget


class Fixed(Controller):
    """Always asks for `nodes` nodes up to depth `depth`."""

    name: ClassVar[str] = "fixed"

    def __init__(self, nodes: int, depth: int) -> None:
        """Set the budget."""
        self._budget = Budget(nodes, depth)

    @classmethod
    def create(cls, context: ControllerContext) -> Self:
        """The sizes that the user gave.

        Raises:
            InvalidOption: none was given, or one is below 1.
        """
        size = context.chosen(cls)
        if not size:
            raise InvalidOption("controller 'fixed' needs a size: give nodes, depth or both")
        return cls(**size)

    def budgets(self, sequences: List[Sequence]) -> list[Budget]:
        """The fixed budget, once per sequence."""
        return [self._budget] * len(sequences)
