"""Interface of tree expansion: builds a draft tree from a drafter's distributions.

An expansion is a generator that yields an `Ask` for distributions. So a batch expands in step
(`drive`), with one draft forward per level.
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
    """A request for draft distributions of `nodes`: leaves or `ROOT`, each asked for once.

    `tree` has all nodes so far, append-only.
    """

    tree: TokenTree
    nodes: tuple[int, ...]


# Yields requests, receives one distribution per requested node, returns the tree.
Growing = Generator[Ask, list[Law], TokenTree]


class Growth(ABC):
    """A tree expansion rule, without state between drafts."""

    name: ClassVar[str]
    # Sampling kind of its drafts; None if they are deterministic.
    kind: ClassVar[LawKind | None]
    # True if it ranks tokens, so needs greedy requests' distributions at temperature 1.
    soft: ClassVar[bool] = False

    @property
    def chain(self) -> bool:
        """True if all its drafts are chains."""
        return False

    @abstractmethod
    def grow(self, budget: Budget, randomness: Randomness, position: int) -> Growing:
        """Expand one draft; `position` is the absolute one of the first drafted token."""


class Names:
    """Fresh draw names for one position in the round that started at `root`."""

    def __init__(self, position: int, root: int) -> None:
        self.position = position
        self._root = root
        self._siblings = itertools.count()

    def __call__(self) -> Draw:
        return Draw(self.position, Purpose.DRAFT, next(self._siblings), self._root)


class Sapling:
    """A draft tree under construction."""

    def __init__(self, budget: Budget, position: int) -> None:
        # `position` is that of the first drafted token.
        self.rows: dict[int, Law] = {}
        self._budget = budget
        self._position = position
        self._tokens: list[int] = []
        self._parents: list[int] = []
        self._depths: list[int] = []
        self._names: dict[int, Names] = {}

    @property
    def room(self) -> int:
        """Nodes left in the budget."""
        return max(0, self._budget.nodes - len(self._tokens))

    def depth(self, node: int) -> int:
        return 0 if node == ROOT else self._depths[node]

    def names(self, parent: int) -> Names:
        """Return draw names for children of `parent`; nodes of one depth share them."""
        position = self._position + self.depth(parent)
        return self._names.setdefault(position, Names(position, self._position - 1))

    def add(self, parent: int, token: int) -> int:
        self._tokens.append(token)
        self._parents.append(parent)
        self._depths.append(self.depth(parent) + 1)
        return len(self._tokens) - 1

    def ask(self, nodes: Sequence[int]) -> Generator[Ask, list[Law], list[Law]]:
        """Request the distributions of `nodes` and store them as the q rows of their children."""
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
        """Return the draft, with q rows unless `kind` is None."""
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
    """Run several expansions in step; `answer` maps open requests, by index, to distributions."""
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
