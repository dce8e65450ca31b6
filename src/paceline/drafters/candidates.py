"""Best-first tree expansion from estimated token probabilities, with learned hit rates."""

from __future__ import annotations

import heapq
from abc import abstractmethod
from bisect import bisect_right
from collections.abc import Callable, Iterable
from collections.abc import Sequence as List
from itertools import accumulate
from operator import mul
from typing import Any, ClassVar, Generic, Protocol, TypeVar

import numpy as np

from paceline.core.types import ROOT, Budget, IntArray, ProbArray, TokenTree
from paceline.drafters.base import Drafter
from paceline.native.library import address
from paceline.policy.acceptance import HitRates
from paceline.policy.draft_gate import LearnThrottle
from paceline.sampling.sequence import Sequence

# Least path probability for which a node is worth a row of the forward.
FLOOR = 0.01

# Candidate: token, estimated probability, and hit rate cell that the estimate comes from.
Offer = tuple[int, float, tuple[int, ...]]

# State of a path in the drafter's model of the text.
Place = TypeVar("Place")


class CandidateTree:
    """A draft with the hit rate cells of its candidates.

    Nodes are in score order, so any prefix is a tree.

    Attributes:
        tokens, parents, scores: per node, as in `TokenTree`.
    """

    def __init__(self) -> None:
        self.tokens: list[int] = []
        self.parents: list[int] = []
        self.scores: list[float] = []
        self._offers: dict[int, List[Offer]] = {}
        self._children: dict[tuple[int, int], int] = {}

    @classmethod
    def grow(
        cls,
        place: Place,
        budget: Budget,
        offers: Callable[[Place, float], List[Offer]],
        follow: Callable[[Place, int], Place],
    ) -> CandidateTree:
        """Expand the most probable nodes first.

        Args:
            place: of the root.
            offers: (place, probability of reaching it) to candidates; tokens differ and the
                probabilities sum to at most one.
            follow: (place, token) to the place after the token.
        """
        guess = cls()
        heap: list[tuple[float, int, int, int, Place, int]] = []
        serial = 0

        def expand(node: int, place: Place, reach: float, depth: int) -> None:
            nonlocal serial
            found = guess._offers[node] = offers(place, reach)
            for token, chance, _ in found:
                serial += 1  # equal scores: the elder first
                heapq.heappush(heap, (-reach * chance, serial, node, token, place, depth))

        if budget.nodes > 0 and budget.depth > 0:
            expand(ROOT, place, 1.0, 1)
        while heap and len(guess.tokens) < budget.nodes:
            value, _, parent, token, above, depth = heapq.heappop(heap)
            node = guess._add(parent, token, -value)
            if depth < budget.depth and node + 1 < budget.nodes:
                expand(node, follow(above, token), -value, depth + 1)
        return guess

    @classmethod
    def chain(cls, steps: List[Offer]) -> CandidateTree:
        """Build a chain; each probability is conditional on the tokens before."""
        return _Chain(steps)

    def _add(self, parent: int, token: int, score: float) -> int:
        node = self._children[parent, token] = len(self.tokens)
        self.tokens.append(token)
        self.parents.append(parent)
        self.scores.append(score)
        return node

    @property
    def score(self) -> float:
        """Expected accepted tokens."""
        return sum(self.scores)

    def tree(self, source: str, origins: tuple[str, ...] = ()) -> TokenTree:
        tokens, parents = np.array(self.tokens, np.int64), np.array(self.parents, np.int64)
        scores = np.array(self.scores, dtype=np.float64)
        return TokenTree(tokens, parents, None, source, scores, origins)

    def learn(self, committed: List[int], rates: HitRates) -> None:
        """Count candidates along the committed tokens: misses, up to the hit at each node."""
        node: int | None = ROOT
        for token in committed:
            if node is None:
                return
            for offered, _, cell in self._offers.get(node, ()):
                rates.add(cell, offered == token)
                if offered == token:
                    break
            node = self._children.get((node, token))


class _Chain(CandidateTree):
    def __init__(self, steps: List[Offer]) -> None:
        tokens, chances, _ = zip(*steps, strict=True) if steps else ((), (), ())
        self.tokens = list(tokens)
        self.parents = list(range(ROOT, len(steps) - 1))
        self.scores = list(accumulate(chances, mul))
        self._steps = steps

    def learn(self, committed: List[int], rates: HitRates) -> None:
        for token, (offered, _, cell) in zip(committed, self._steps, strict=False):
            rates.add(cell, offered == token)
            if offered != token:
                return


# Drafts from native tree expansion (`native/drafting/best_first.hpp`).


class Workspace:
    """Output buffers of native tree expansion: addresses of int64 `numbers`, float64 `chances`."""

    def __init__(self) -> None:
        self._nodes = self._offers = -1

    def fit(self, nodes: int, offers: int) -> None:
        """Make room for a draft of so many nodes with so many offers in all, or for the offers."""
        if nodes > self._nodes or offers > self._offers:
            self._nodes, self._offers = max(nodes, self._nodes), max(offers, self._offers)
            self._numbers = np.empty(3 * self._nodes + 2 + 2 * self._offers, np.int64)
            self._chances = np.empty(max(self._nodes, self._offers))
            self.numbers, self.chances = address(self._numbers), address(self._chances)

    def guess(self, nodes: int) -> NativeCandidateTree:
        """Return the draft of so many nodes that was written."""
        offers = int(self._numbers[3 * nodes + 1])
        numbers = self._numbers[: 3 * nodes + 2 + 2 * offers]
        return NativeCandidateTree(numbers.copy(), self._chances[:nodes].copy())

    def offers(self, count: int, rates: HitRates) -> list[Offer]:
        """Return the offers that were written, whose cells are those of `rates`."""
        each = iter(self._numbers[: 2 * count].tolist())
        chances = self._chances[:count].tolist()
        return [(t, p, rates.cells[cell]) for t, cell, p in zip(each, each, chances, strict=True)]


class NativeCandidateTree(CandidateTree):
    """Guess whose offers stay as the library wrote them: few are ever read."""

    def __init__(self, numbers: IntArray, scores: ProbArray) -> None:
        # The layout is that of `Growth::write`.
        nodes = len(scores)
        self._draft = numbers[:nodes], numbers[nodes : 2 * nodes], scores
        self._rest = numbers[2 * nodes :]

    def __getattr__(self, name: str) -> Any:
        # Lists of the draft's columns, made on first use.
        if name not in ("tokens", "parents", "scores"):
            raise AttributeError(name)
        self.tokens, self.parents, self.scores = (column.tolist() for column in self._draft)
        return getattr(self, name)

    def tree(self, source: str, origins: tuple[str, ...] = ()) -> TokenTree:
        tokens, parents, scores = self._draft
        return TokenTree(tokens, parents, None, source, scores, origins)

    def learn(self, committed: List[int], rates: HitRates) -> None:
        # As in any guess, but cells are given by their places.
        rest = self._rest.tolist()
        pairs = len(self._draft[2]) + 2
        node = ROOT
        for depth, token in enumerate(committed, 1):
            begin, end = (pairs + 2 * at for at in rest[node + 1 : node + 3])
            for at in range(begin, end, 2):
                rates.count(rest[at + 1], rest[at] == token)
                if rest[at] == token:
                    break
            child = self._child(node, token) if depth < len(committed) else None
            if child is None:
                return
            node = child

    def _child(self, node: int, token: int) -> int | None:
        pairs = zip(self.parents, self.tokens, strict=True)
        return next((child for child, pair in enumerate(pairs) if pair == (node, token)), None)


# Base of drafters that draft from a model of the text and learn its hit rates.


class Model(Protocol):
    """A text model."""

    @property
    def rates(self) -> HitRates: ...


AnyModel = TypeVar("AnyModel", bound=Model)


class CandidateDrafter(Drafter, Generic[AnyModel]):
    """Holds the open draft of each sequence. `reset`, called on creation, makes the model."""

    _model: AnyModel
    # True if it learns by ranking logits, which it then does in few steps without a draft.
    ranks: ClassVar[bool] = False

    def __init__(self) -> None:
        self._guesses: dict[int, tuple[int, CandidateTree]] = {}
        self._idle = LearnThrottle()
        self._nothing = CandidateTree().tree(self.name)
        self.reset()

    def propose(self, sequences: List[Sequence], budgets: List[Budget]) -> list[TokenTree]:
        if self.ranks and self._idle.skips(budgets):
            return [self._nothing] * len(sequences)
        drafts = []
        for sequence, budget in zip(sequences, budgets, strict=True):
            guess = self._guess(sequence, budget)
            self._guesses[sequence.id] = (len(sequence.tokens), guess)
            drafts.append(guess.tree(self.name))
        return drafts

    def close(self, sequence: Sequence) -> None:
        self._guesses.pop(sequence.id, None)

    @abstractmethod
    def _guess(self, sequence: Sequence, budget: Budget) -> CandidateTree: ...

    def _left_out(self, sequence: Sequence) -> bool:
        return sequence.id not in self._guesses

    def _settle(self, sequence: Sequence) -> tuple[int, CandidateTree]:
        # Scores the whole open draft, verified or not; returns the position after its root, too.
        begin, guess = self._guesses.pop(sequence.id)
        guess.learn(sequence.tokens[begin:], self._model.rates)
        return begin, guess


# Hit rates of copied continuations, by match length and share of the occurrences.

_EDGES = (2, 3, 4, 5, 6, 8, 12, 20)

_BUCKETS = tuple(bisect_right(_EDGES, length) for length in range(_EDGES[-1] + 1))

# Bins by match length.
LENGTHS = len(_EDGES) + 1

# Hit rates of "once, always so" by length of context, and of continuations among several, by
# their share of the occurrences. Measured on greedy texts of the default model; start values only.
_ALONE = (0.30, 0.56, 0.65, 0.70, 0.75, 0.79, 0.84, 0.91, 0.97)
_RIVALLED = (0.35, 0.17, 0.11, 0.05)
_SHARES = (0.1, 0.25, 0.5)

# Prior quality of another source, relative to the sequence's own text.
TRUST = 0.6


def length_kind(length: int) -> int:
    """Return the bin of a match length, 0 to `LENGTHS - 1`."""
    return _BUCKETS[length] if length <= _EDGES[-1] else LENGTHS - 1


def length_kinds(length: int, count: int) -> list[int]:
    """Return the bins of `count` consecutive match lengths from `length` on."""
    kinds = list(_BUCKETS[length : length + count])
    return kinds + [LENGTHS - 1] * (count - len(kinds))


def spread_kind(times: int, occurrences: int) -> int:
    """Return the bin of a continuation that followed `times` of `occurrences` occurrences.

    0 to 2: the only continuation, of one, two, or more occurrences. 3 to 6: one of several, with a
    share of at least half, a quarter, a tenth, or less.
    """
    if times == occurrences:
        return min(times, 3) - 1
    return 6 - bisect_right(_SHARES, times / occurrences)


def alone(trust: float = 1.0) -> ProbArray:
    """Return prior hit rates of only continuations, float64 `[LENGTHS]`, scaled by `trust`."""
    return trust * np.array(_ALONE)


def evidence_rates(*trusts: float) -> HitRates:
    """Return hit rates by (source, `length_kind`, `spread_kind`), with a prior trust per source."""
    tables = []
    for trust in trusts:
        miss = 1 - alone(trust)[:, None] * np.ones(7)
        miss[:, 1:3] *= 0.6, 0.25
        miss[:, 3:] = 1 - trust * np.array(_RIVALLED)
        tables.append(1 - miss)
    return HitRates(np.array(tables), weight=16.0)


# Source, match length, occurrences with a continuation, and (token, count), the most frequent
# first.
Evidence = tuple[int, int, int, List[tuple[int, int]]]


def weigh(
    evidence: Iterable[Evidence], rates: list[list[list[float]]], reach: float
) -> list[Offer]:
    """Return candidates from matches in order of trust; later ones share the remaining probability.

    Candidates whose path probability (`reach` included) is below `FLOOR` are left out.
    """
    offers: list[Offer] = []
    offered = set()
    left = 1.0
    for source, length, occurrences, followers in evidence:
        kind = length_kind(length)
        table = rates[source][kind]
        for token, times in followers:
            if token in offered:
                continue
            spread = spread_kind(times, occurrences)
            chance = left * table[spread]
            if chance * reach < FLOOR:
                break  # later ones are rarer
            offered.add(token)
            offers.append((token, chance, (source, kind, spread)))
            left -= chance
        if left * reach < FLOOR:
            break
    return offers
