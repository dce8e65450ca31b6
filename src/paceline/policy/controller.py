"""Controller contract: draft budgets, decided before the tokens are drawn."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar, Self

from paceline.core.options import arguments, require
from paceline.core.types import Budget, Described, TokenTree
from paceline.errors import InvalidOption
from paceline.policy.cost import CostModel
from paceline.sampling.generation import Generation, VerifiedDraft

# Nodes or levels of a draft.
MOST = 65536


@dataclass(frozen=True, slots=True)
class ControllerContext:
    """Inputs for building a controller.

    Attributes:
        costs: measures forward costs on this machine, or reads them from the cache.
        nodes: draft size that the user asked for, or None.
        depth: draft depth that the user asked for, or None.
        options: what the user set, as text.
    """

    costs: Callable[[], CostModel]
    nodes: int | None = None
    depth: int | None = None
    options: Mapping[str, str] = field(default_factory=dict)

    def budget(self) -> Budget | None:
        """Return the requested size, one figure standing for both if alone; None without any.

        Raises:
            InvalidOption: a size below 1, or beyond what any draft has.
        """
        for name, value in (("nodes", self.nodes), ("depth", self.depth)):
            if value is not None:
                require(1 <= value <= MOST, name, value, f"1 or more, and at most {MOST}")
        nodes, depth = self.nodes or self.depth, self.depth or self.nodes
        return None if nodes is None or depth is None else Budget(nodes, depth)

    def chosen(self, factory: type[Controller]) -> dict[str, Any]:
        """Return constructor arguments: options, and `nodes` and `depth`. Raises InvalidOption."""
        given = arguments(factory, "controller", self.options)
        sizes = {name: given.pop(name) for name in ("nodes", "depth") if name in given}
        size = replace(self, **sizes).budget()
        return given if size is None else given | {"nodes": size.nodes, "depth": size.depth}


class Controller(Described, ABC):
    """Set budgets before drafting, and maybe prune deterministic drafts after it."""

    guarantee = "keeps every guarantee"
    # Rows of prefill in the next forward, beside roots and drafts. Set by the loop before budgets.
    beside: int = 0
    # Requests that wait for a place; where there are any, tokens that come sooner make room.
    # Set by the engine before each step.
    queue: int = 0
    # Forward costs, where the controller knows them.
    costs: CostModel | None = None

    @classmethod
    def create(cls, context: ControllerContext) -> Self:
        """Build from the user's options and the machine's costs. Raises InvalidOption."""
        return cls(**context.chosen(cls))

    @abstractmethod
    def budgets(self, sequences: Sequence[Generation]) -> list[Budget]:
        """Return the largest draft worth asking for, per sequence."""

    def select(
        self, sequences: Sequence[Generation], drafts: Sequence[TokenTree]
    ) -> list[TokenTree]:
        """Return the part of each draft worth verifying. Sampled drafts must pass unchanged."""
        return list(drafts)

    def observe(
        self, step: Sequence[VerifiedDraft], draft_seconds: float, forward_seconds: float
    ) -> None:
        """Learn from a step: what was verified, what was accepted, what it cost.

        The default calls `learn` for each sequence.
        """
        for each in step:
            self.learn(each)

    def learn(self, verified: VerifiedDraft) -> None:
        """Learn from what a step accepted of one draft."""

    def close(self, sequence: Generation) -> None:
        """Drop a sequence that has ended."""


def shallower(limit: Budget, depth: int) -> Budget:
    """Return a budget cut to a depth, with its nodes in proportion: a level keeps its width."""
    return Budget(max(depth, -(-limit.nodes * depth // limit.depth)), depth)


class Fixed(Controller):
    """Ask for `nodes` nodes up to depth `depth` at every step."""

    name: ClassVar[str] = "fixed"
    requires = "--nodes or --depth"

    def __init__(self, nodes: int, depth: int) -> None:
        self._budget = Budget(nodes, depth)

    @classmethod
    def create(cls, context: ControllerContext) -> Self:
        """Build from the user's sizes. InvalidOption: none was given, or one is below 1."""
        size = context.chosen(cls)
        if not size:
            raise InvalidOption("controller 'fixed' needs a size: give nodes, depth or both")
        return cls(**size)

    def budgets(self, sequences: Sequence[Generation]) -> list[Budget]:
        return [self._budget] * len(sequences)
