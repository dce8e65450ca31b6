"""Interface of tree expansion: builds a draft tree from a drafter's distributions.

An expansion is a generator that yields a `DistributionRequest` for each level, so a batch expands
in step (`run_batched`), with one draft forward per level.
"""

from __future__ import annotations

import itertools
from abc import ABC, abstractmethod
from collections.abc import Callable, Generator, Mapping, Sequence
from dataclasses import replace
from typing import ClassVar, NamedTuple

import numpy as np

from paceline.core import tree as trees
from paceline.core.types import (
    ROOT,
    Budget,
    Distribution,
    DraftSampling,
    IntArray,
    ProbArray,
    SamplingScheme,
    TokenTree,
)
from paceline.errors import InvalidOption
from paceline.sampling.distributions import without
from paceline.sampling.randomness import Draw, Purpose, Randomness
from paceline.sampling.sampler import top_k_ids


class DistributionRequest(NamedTuple):
    """A request for draft distributions of `nodes`: leaves or `ROOT`, each asked for once.

    `tree` has all nodes so far, append-only.
    """

    tree: TokenTree
    nodes: tuple[int, ...]


# Yields requests, receives one distribution per requested node, returns the tree.
Growing = Generator[DistributionRequest, list[Distribution], TokenTree]


class TreeExpansion(ABC):
    """A tree expansion rule, without state between drafts."""

    name: ClassVar[str]
    # Sampling kind of its drafts; None if they are deterministic.
    kind: ClassVar[SamplingScheme | None]
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


class TreeBuilder:
    """A draft tree under construction."""

    def __init__(self, budget: Budget, position: int) -> None:
        # `position` is that of the first drafted token.
        self.rows: dict[int, Distribution] = {}
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

    def ask(
        self, nodes: Sequence[int]
    ) -> Generator[DistributionRequest, list[Distribution], list[Distribution]]:
        """Request the distributions of `nodes` and store them as the q rows of their children."""
        distributions = yield DistributionRequest(self._tree(None), tuple(nodes))
        self.rows.update(zip(nodes, distributions, strict=True))
        return distributions

    def finish(
        self,
        kind: SamplingScheme | None,
        draws: Mapping[int, tuple[int, ...]] | None = None,
        paths: Sequence[Sequence[int]] = (),
        scores: Sequence[float] | None = None,
    ) -> TokenTree:
        """Return the draft, with q rows unless `kind` is None."""
        if kind is None or not self._tokens:
            known = None if scores is None else np.array(scores, dtype=np.float64)
            return replace(self._tree(None), scores=known)
        rows = {parent: self.rows[parent] for parent in sorted(set(self._parents))}
        return self._tree(DraftSampling(kind, rows, draws or {}, tuple(map(tuple, paths))))

    def _tree(self, distribution: DraftSampling | None) -> TokenTree:
        tokens = np.array(self._tokens, dtype=np.int64)
        return TokenTree(tokens, np.array(self._parents, dtype=np.int64), distribution)


def run_batched(
    growing: Sequence[Growing],
    answer: Callable[[Mapping[int, DistributionRequest]], Mapping[int, list[Distribution]]],
) -> list[TokenTree]:
    """Run several expansions in step; `answer` maps open requests, by index, to distributions."""
    done = [trees.EMPTY] * len(growing)
    known: Mapping[int, list[Distribution] | None] = dict.fromkeys(range(len(growing)))
    while known:
        asks: dict[int, DistributionRequest] = {}
        for index, distributions in known.items():
            each = growing[index]
            try:
                asks[index] = next(each) if distributions is None else each.send(distributions)
            except StopIteration as end:
                done[index] = end.value
        known = answer(asks) if asks else {}
    return done


# Sampling without replacement:


def successive(q: Distribution, count: int, names: Names, randomness: Randomness) -> list[int]:
    """Sample up to `count` tokens, fewer where less than `paceline.sampling.distributions.AGREE` of `q` is left."""
    tokens: list[int] = []
    rest: Distribution | None = q
    while rest is not None and len(tokens) < count:
        tokens.append(rest.token(randomness.choice(rest.probs, names())))
        rest = without(rest, tokens[-1]) if len(tokens) < count else None
    return tokens


def race(probs: ProbArray, uniform: ProbArray, count: int) -> IntArray:
    """Return the first `count` finishers of an exponential race: Gumbel-top-k of log p.

    Zero entries of `probs` never finish. `uniform` is float64 `[k]`, in (0, 1).
    """
    with np.errstate(divide="ignore", over="ignore"):
        speed = np.log(uniform) / probs
    return top_k_ids(speed, min(count, int(np.count_nonzero(probs))))


# Base of tree expansions with a branching factor per level.


class LevelExpansion(TreeExpansion):
    """Gives every node of a level the same number of draws, allotted before the first is made."""

    def __init__(self, widths: Sequence[int]) -> None:
        """Set the draws per node by level, the last for all deeper ones. Raises InvalidOption."""
        if not widths or min(widths) < 1:
            raise InvalidOption(
                f"growth '{self.name}' needs branching factors of 1 or more, not {list(widths)}"
            )
        self._widths = tuple(widths)

    @property
    def chain(self) -> bool:
        return max(self._widths) == 1

    @abstractmethod
    def _level(
        self, rows: list[Distribution], counts: list[int], names: Names, randomness: Randomness
    ) -> list[list[int]]:
        # Tokens of the children, per row at most its count, in the order drawn.
        ...

    def grow(self, budget: Budget, randomness: Randomness, position: int) -> Growing:
        # A token drawn again under one parent is the same node again.
        sapling = TreeBuilder(budget, position)
        draws: dict[int, tuple[int, ...]] = {}
        level = [ROOT]
        for depth in range(budget.depth):
            width = self._widths[min(depth, len(self._widths) - 1)]
            counts = [min(width, sapling.room - used) for used in range(0, sapling.room, width)]
            parents = level[: len(counts)]
            if not parents:
                break
            rows = yield from sapling.ask(parents)
            names = sapling.names(parents[0])
            drawn = self._level(rows, counts[: len(parents)], names, randomness)
            level = []
            for parent, tokens in zip(parents, drawn, strict=True):
                nodes: dict[int, int] = {}
                for token in tokens:
                    if token not in nodes:
                        nodes[token] = sapling.add(parent, token)
                level += nodes.values()
                if len(nodes) < len(tokens):
                    draws[parent] = tuple(nodes[token] for token in tokens)
        return sapling.finish(self.kind, draws)
