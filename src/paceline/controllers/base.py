"""The contract of a controller: how much to draft, decided before the tokens are drawn."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from collections.abc import Sequence as List
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar, Self

from paceline.controllers.cost import CostModel
from paceline.errors import InvalidOption
from paceline.options import arguments
from paceline.sequence import Sequence
from paceline.types import Budget, TokenTree, Verdict


@dataclass(frozen=True, slots=True)
class ControllerContext:
    """What a controller may be built from.

    Attributes:
        costs: measures, or reads from the cache, what forwards cost on this machine.
        nodes: draft size that the user asked for, or None.
        depth: draft depth that the user asked for, or None.
        options: what the user set, as text.
    """

    costs: Callable[[], CostModel]
    nodes: int | None = None
    depth: int | None = None
    options: Mapping[str, str] = field(default_factory=dict)

    def budget(self) -> Budget | None:
        """The size asked for, one figure standing for both if alone; None if neither was given.

        Raises:
            InvalidOption: a size below 1.
        """
        for name, value in (("nodes", self.nodes), ("depth", self.depth)):
            if value is not None and value < 1:
                raise InvalidOption(f"{name} must be 1 or more, not {value}")
        nodes, depth = self.nodes or self.depth, self.depth or self.nodes
        return None if nodes is None or depth is None else Budget(nodes, depth)

    def chosen(self, factory: type[Controller]) -> dict[str, Any]:
        """Keyword arguments for a controller: its options, and `nodes` and `depth` if given.

        Raises:
            InvalidOption: a size below 1, or an option that the controller does not have.
        """
        given = arguments(factory, "controller", self.options)
        sizes = {name: given.pop(name) for name in ("nodes", "depth") if name in given}
        size = replace(self, **sizes).budget()
        return given if size is None else given | {"nodes": size.nodes, "depth": size.depth}


class Controller(ABC):
    """Sets budgets before drafting and may prune deterministic drafts after it."""

    name: ClassVar[str]
    rows: int = 0
    """Rows to pad the next forward to, on a runtime that pads; 0 leaves it to the runtime."""
    beside: int = 0
    """Rows of the next forward that are no sequence's root or draft: prompts that are read beside
    it. The loop sets it before it asks for budgets."""
    queue: int = 0
    """Requests that wait for a place: where there are any, a token that comes sooner makes room for
    them. The engine sets it before each step."""
    costs: CostModel | None = None
    """What forwards cost, where the controller knows."""

    @classmethod
    def create(cls, context: ControllerContext) -> Self:
        """A controller from what the user asked for and the machine costs.

        Raises:
            InvalidOption: a size or option is unknown or out of range.
        """
        return cls(**context.chosen(cls))

    @abstractmethod
    def budgets(self, sequences: List[Sequence]) -> list[Budget]:
        """The largest draft worth asking for, per sequence."""

    def select(self, sequences: List[Sequence], drafts: List[TokenTree]) -> list[TokenTree]:
        """The part of each draft worth verifying. Sampled drafts pass unchanged."""
        return list(drafts)

    def observe(
        self,
        sequences: List[Sequence],
        drafts: List[TokenTree],
        verdicts: List[Verdict],
        draft_seconds: float,
        forward_seconds: float,
    ) -> None:
        """Learn from a step: what was verified, what was accepted, what it cost."""

    def close(self, sequence: Sequence) -> None:
        """A sequence has ended."""


def shallower(limit: Budget, depth: int) -> Budget:
    """A budget cut to a depth, and its nodes in proportion: a level keeps its width."""
    return Budget(max(depth, -(-limit.nodes * depth // limit.depth)), depth)
