"""Interface of tree expansion: builds a draft tree from a drafter's distributions.

An expansion is a generator that yields a `DistributionRequest` for each level, so a batch expands
in step (`run_batched`), with one draft forward per level.
"""

from __future__ import annotations

import heapq
import itertools
from abc import ABC, abstractmethod
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import ClassVar, Generic, NamedTuple, TypeVar

import numpy as np

from paceline.core import tree as trees
from paceline.core.types import (
    ROOT,
    Budget,
    Described,
    Distribution,
    DraftSampling,
    IntArray,
    ProbArray,
    SamplingScheme,
    TokenTree,
)
from paceline.errors import InvalidOption
from paceline.sampling.distributions import without
from paceline.sampling.generation import Generation
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


class TreeExpansion(Described, ABC):
    """A tree expansion rule, without state between drafts."""

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


class TreeBuilder(trees.Builder):
    """A draft tree under construction from distributions, within a budget."""

    def __init__(self, budget: Budget, position: int) -> None:
        # `position` is that of the first drafted token.
        super().__init__()
        self.rows: dict[int, Distribution] = {}
        self._budget = budget
        self._position = position
        self._depths: list[int] = []
        self._names: dict[int, Names] = {}

    @property
    def room(self) -> int:
        """Nodes left in the budget."""
        return max(0, self._budget.nodes - len(self.tokens))

    def depth(self, node: int) -> int:
        return 0 if node == ROOT else self._depths[node]

    def reached(self, node: int) -> float:
        """Return the score of a node, 1 for the root."""
        return 1.0 if node == ROOT else self.scores[node]

    def names(self, parent: int) -> Names:
        """Return draw names for children of `parent`; nodes of one depth share them."""
        position = self._position + self.depth(parent)
        return self._names.setdefault(position, Names(position, self._position - 1))

    def add(self, parent: int, token: int, score: float | None = None) -> int:
        self._depths.append(self.depth(parent) + 1)
        return super().add(parent, token, score)

    def ask(
        self, nodes: Sequence[int]
    ) -> Generator[DistributionRequest, list[Distribution], list[Distribution]]:
        """Request the distributions of `nodes` and store them as the q rows of their children."""
        distributions = yield DistributionRequest(self.tree(), tuple(nodes))
        self.rows.update(zip(nodes, distributions, strict=True))
        return distributions

    def finish(
        self,
        kind: SamplingScheme | None,
        draws: Mapping[int, tuple[int, ...]] | None = None,
        paths: Sequence[Sequence[int]] = (),
    ) -> TokenTree:
        """Return the draft, with q rows unless `kind` is None."""
        if kind is None or not self.tokens:
            return replace(self.tree(), first=self.rows.get(ROOT))
        rows = {parent: self.rows[parent] for parent in sorted(set(self.parents))}
        sampling = DraftSampling(kind, rows, draws or {}, tuple(map(tuple, paths)))
        return replace(self.tree(), sampling=sampling)


Item = TypeVar("Item")


class BestFirst(Generic[Item]):
    """Queue of places in a tree, the highest value first; of equals, the elder."""

    def __init__(self) -> None:
        self._heap: list[tuple[float, int, Item]] = []
        self._serial = itertools.count()

    def __bool__(self) -> bool:
        return bool(self._heap)

    def __iter__(self) -> Iterator[Item]:
        return (item for _, _, item in self._heap)

    def push(self, value: float, item: Item) -> None:
        heapq.heappush(self._heap, (-value, next(self._serial), item))

    def pop(self) -> tuple[float, Item]:
        value, _, item = heapq.heappop(self._heap)
        return -value, item


def expand(
    expansion: TreeExpansion,
    sequences: Sequence[Generation],
    budgets: Sequence[Budget],
    depths: Iterable[int],
    distributions: Callable[[list[int], list[DistributionRequest]], Sequence[list[Distribution]]],
) -> list[TokenTree]:
    """Expand one draft per sequence, in step.

    `depths` limit the budgets; `distributions` answers requests of the sequences with some indices.
    """
    growing = [
        expansion.grow(
            replace(budget, depth=min(budget.depth, depth)),
            sequence.randomness,
            len(sequence.tokens),
        )
        for sequence, budget, depth in zip(sequences, budgets, depths, strict=True)
    ]

    def answer(asks: Mapping[int, DistributionRequest]) -> dict[int, list[Distribution]]:
        return dict(zip(asks, distributions(list(asks), list(asks.values())), strict=True))

    return run_batched(growing, answer)


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


def successive(
    q: Distribution, names: Names, randomness: Randomness
) -> Iterator[tuple[int, float]]:
    """Sample tokens one after another, each with its probability among those that were left.

    Ends where less than `paceline.sampling.distributions.AGREE` of `q` is left.
    """
    rest: Distribution | None = q
    while rest is not None:
        token = rest.token(randomness.choice(rest.probs, names()))
        yield token, rest.prob(token)
        rest = without(rest, token)


def race(probs: ProbArray, uniform: ProbArray, count: int) -> IntArray:
    """Return the first `count` finishers of an exponential race: Gumbel-top-k of log p.

    Zero entries of `probs` never finish. `uniform` is float64 `[k]`, in (0, 1).
    """
    with np.errstate(divide="ignore", over="ignore"):
        speed = np.log(uniform) / probs
    return top_k_ids(speed, min(count, int(np.count_nonzero(probs))))


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
    def _children(self, q: Distribution, count: int, names: Names, draws: Randomness) -> list[int]:
        # Tokens of the children of a node, at most `count`, in the order drawn.
        ...

    def grow(self, budget: Budget, randomness: Randomness, position: int) -> Growing:
        # A token drawn again under one parent is the same node again.
        builder = TreeBuilder(budget, position)
        draws: dict[int, tuple[int, ...]] = {}
        level = [ROOT]
        for depth in range(budget.depth):
            width = self._widths[min(depth, len(self._widths) - 1)]
            counts = [min(width, builder.room - used) for used in range(0, builder.room, width)]
            parents = level[: len(counts)]
            if not parents:
                break
            rows = yield from builder.ask(parents)
            names = builder.names(parents[0])
            level = []
            for parent, q, count in zip(parents, rows, counts, strict=False):
                tokens = self._children(q, count, names, randomness)
                for token in tokens:
                    if (parent, token) not in builder.nodes:
                        level.append(builder.add(parent, token))
                if len(set(tokens)) < len(tokens):
                    draws[parent] = tuple(builder.nodes[parent, token] for token in tokens)
        return builder.finish(self.kind, draws)
