"""The contract of a growth: a way to grow a drawn tree from a drafter's laws.

A growth decides which nodes get children and draws them; where laws come from is not its business.
It is a generator: it yields an `Ask` for the laws of some nodes, is sent those laws, and returns
the tree. So the growths of a whole batch run in step (`drive`), and a draft model answers all of
them with one forward per level.
"""

from __future__ import annotations

import itertools
from abc import ABC, abstractmethod
from collections.abc import Callable, Generator, Mapping, Sequence
from dataclasses import replace
from typing import ClassVar, NamedTuple

import numpy as np

from paceline import tree as trees
from paceline.randomness import Draw, Purpose, Randomness
from paceline.types import ROOT, Budget, DraftLaw, Law, LawKind, TokenTree


class Ask(NamedTuple):
    """What a growth wants to know next.

    Attributes:
        tree: all nodes so far, without a law. Nodes are only ever appended.
        nodes: whose laws are wanted: leaves of `tree`, or `ROOT`; no node is asked for twice.
    """

    tree: TokenTree
    nodes: tuple[int, ...]


Growing = Generator[Ask, list[Law], TokenTree]
"""A growth at work: yields questions, is sent one law per node asked for, returns the tree."""


class Growth(ABC):
    """A way to grow a draft. It keeps no state between drafts."""

    name: ClassVar[str]
    kind: ClassVar[LawKind | None]
    """How the tokens are drawn, as the draft's law will say; None if it will have no law."""
    soft: ClassVar[bool] = False
    """Whether it wants the laws of greedy requests at temperature 1: it ranks tokens, and a law
    that is certain of one has no second."""

    @property
    def chain(self) -> bool:
        """Whether all its drafts are chains."""
        return False

    @abstractmethod
    def grow(self, budget: Budget, randomness: Randomness, position: int) -> Growing:
        """Grow one draft.

        Args:
            budget: most nodes and greatest depth.
            randomness: all draws.
            position: absolute position of the first drafted token.
        """


class Names:
    """Fresh names for the draws that one round of drafting makes for one position."""

    def __init__(self, position: int, root: int) -> None:
        """Name draws for `position` in the round that started at `root`."""
        self.position = position
        self._root = root
        self._siblings = itertools.count()

    def __call__(self) -> Draw:
        """A name not given before."""
        return Draw(self.position, Purpose.DRAFT, next(self._siblings), self._root)


class Sapling:
    """A draft while it grows."""

    def __init__(self, budget: Budget, position: int) -> None:
        """Start with no node; `position` is that of the first drafted token."""
        self.rows: dict[int, Law] = {}
        self._budget = budget
        self._position = position
        self._tokens: list[int] = []
        self._parents: list[int] = []
        self._depths: list[int] = []
        self._names: dict[int, Names] = {}

    @property
    def room(self) -> int:
        """How many nodes the budget still has."""
        return max(0, self._budget.nodes - len(self._tokens))

    def depth(self, node: int) -> int:
        """Depth of a node; 0 for `ROOT`."""
        return 0 if node == ROOT else self._depths[node]

    def names(self, parent: int) -> Names:
        """Names for draws of children of `parent`."""
        position = self._position + self.depth(parent)
        return self._names.setdefault(position, Names(position, self._position - 1))

    def add(self, parent: int, token: int) -> int:
        """Append a child and return its node."""
        self._tokens.append(token)
        self._parents.append(parent)
        self._depths.append(self.depth(parent) + 1)
        return len(self._tokens) - 1

    def ask(self, nodes: Sequence[int]) -> Generator[Ask, list[Law], list[Law]]:
        """Ask for the laws of `nodes` and note them as the rows of their children."""
        laws = yield Ask(self._tree(None), tuple(nodes))
        self.rows.update(zip(nodes, laws, strict=True))
        return laws

    def finish(
        self,
        kind: LawKind | None,
        draws: Mapping[int, tuple[int, ...]] | None = None,
        paths: Sequence[Sequence[int]] = (),
        scores: Sequence[float] | None = None,
    ) -> TokenTree:
        """The draft, with the rows of all nodes that have children.

        Args:
            kind: of its law; None for a draft without a law.
            draws: as in `DraftLaw`.
            paths: as in `DraftLaw`.
            scores: as in `TokenTree`, for a draft without a law.
        """
        if kind is None or not self._tokens:
            known = None if scores is None else np.array(scores, dtype=np.float64)
            return replace(self._tree(None), scores=known)
        rows = {parent: self.rows[parent] for parent in sorted(set(self._parents))}
        return self._tree(DraftLaw(kind, rows, draws or {}, tuple(map(tuple, paths))))

    def _tree(self, law: DraftLaw | None) -> TokenTree:
        tokens = np.array(self._tokens, dtype=np.int64)
        return TokenTree(tokens, np.array(self._parents, dtype=np.int64), law)


def drive(
    growing: Sequence[Growing], answer: Callable[[Mapping[int, Ask]], Mapping[int, list[Law]]]
) -> list[TokenTree]:
    """Run several growths in step to their end.

    Args:
        growing: the growths.
        answer: from the open questions, by index into `growing`, to the laws asked for.
    """
    done = [trees.EMPTY] * len(growing)
    known: Mapping[int, list[Law] | None] = dict.fromkeys(range(len(growing)))
    while known:
        asks: dict[int, Ask] = {}
        for index, laws in known.items():
            each = growing[index]
            try:
                asks[index] = next(each) if laws is None else each.send(laws)
            except StopIteration as end:
                done[index] = end.value
        known = answer(asks) if asks else {}
    return done
