"""Fixed budget for every sequence at every step."""

from __future__ import annotations

from collections.abc import Sequence as List
from typing import ClassVar, Self

from paceline.controllers.base import Controller, ControllerContext
from paceline.errors import InvalidOption
from paceline.sequence import Sequence
from paceline.types import Budget


class Fixed(Controller):
    """Ask for `nodes` nodes up to depth `depth` at every step."""

    name: ClassVar[str] = "fixed"

    def __init__(self, nodes: int, depth: int) -> None:
        self._budget = Budget(nodes, depth)

    @classmethod
    def create(cls, context: ControllerContext) -> Self:
        """Build from the user's sizes. InvalidOption: none was given, or one is below 1."""
        size = context.chosen(cls)
        if not size:
            raise InvalidOption("controller 'fixed' needs a size: give nodes, depth or both")
        return cls(**size)

    def budgets(self, sequences: List[Sequence]) -> list[Budget]:
        return [self._budget] * len(sequences)
