"""Lookahead decoding (Fu et al. 2024, arXiv:2402.02057): Jacobi iteration over a window of W
positions, and a pool of the n-grams (length N) that it collects, verified in the same forward.
The window spends rows on later drafts, which a score cannot express: a controller that prunes by
score cuts it, fixed sizes keep it. Added: the pool outlives sequences and reads prompt and output.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence
from typing import ClassVar, NamedTuple

import numpy as np

from paceline.core.options import within
from paceline.core.tree import places
from paceline.core.types import ROOT, Budget, LogitArray, Needs, ProbArray, TokenTree
from paceline.drafters.candidates import CandidateDrafter
from paceline.policy.acceptance import HitRates
from paceline.sampling.generation import Generation, VerifiedDraft
from paceline.trees.candidates import FLOOR, CandidateTree, Offer

Run = tuple[int, ...]


class Followers:
    """Latest distinct followers per leader; drops those added longest ago."""

    def __init__(self, capacity: int, width: int) -> None:
        self._capacity = capacity
        self._width = width
        self._followers: OrderedDict[Run, list[Run]] = OrderedDict()

    def __len__(self) -> int:
        return len(self._followers)

    def add(self, leader: Run, follower: Run) -> None:
        """Make `follower` the latest of `leader`, and `leader` the latest of all."""
        known = self._followers.get(leader)
        if known is None:
            if len(self._followers) == self._capacity:
                self._followers.popitem(last=False)
            self._followers[leader] = [follower]
            return
        self._followers.move_to_end(leader)
        if follower in known:
            known.remove(follower)
        elif len(known) == self._width:
            known.pop()
        known.insert(0, follower)

    def after(self, leader: Run) -> Sequence[Run]:
        """Return the followers of `leader`, the latest first."""
        return self._followers.get(leader, ())


class _Course(NamedTuple):
    # A follower that the path agrees with so far; rank 0 is the latest of its leader.

    follower: Run
    leader: int
    rank: int


class Place(NamedTuple):
    """State of a path: last tokens, and followers whose first `at` tokens end it, best first."""

    tail: Run
    courses: Sequence[_Course]
    at: int


class FollowerModel:
    """Recent runs of `follower` tokens after leaders of 1 to `leader` tokens.

    `rates` are by leader length, rank of the follower, and token in it.
    """

    def __init__(
        self, leader: int, follower: int, capacity: int, width: int, prior: ProbArray
    ) -> None:
        """Create an empty cache; `prior` is float64 `[leader, width, follower]`."""
        self._leader = leader
        self._follower = follower
        self._cache = Followers(capacity, width)
        self.rates = HitRates(prior, weight=16.0)

    def read(self, tokens: Sequence[int], begin: int) -> None:
        """Learn all runs whose last token has position `begin` or later."""
        for end in range(max(begin, self._follower) + 1, len(tokens) + 1):
            middle = end - self._follower
            follower = tuple(tokens[middle:end])
            for length in range(1, min(self._leader, middle) + 1):
                self._cache.add(tuple(tokens[middle - length : middle]), follower)

    def add(self, leader: Run, follower: Run) -> None:
        self._cache.add(leader, follower)

    def place(self, tokens: Sequence[int]) -> Place:
        return self._look_up(tuple(tokens[-self._leader :]))

    def follow(self, place: Place, token: int) -> Place:
        tail = (*place.tail, token)[-self._leader :]
        at = place.at + 1
        if at == self._follower:
            return self._look_up(tail)
        courses = [course for course in place.courses if course.follower[place.at] == token]
        return Place(tail, courses, at)

    def offers(self, place: Place, reach: float) -> Sequence[Offer]:
        """Return the candidates after a place of path probability `reach`."""
        rates = self.rates.table
        offers: list[Offer] = []
        offered: set[int] = set()
        left = 1.0
        for follower, leader, rank in place.courses:
            if left * reach < FLOOR:
                break
            token = follower[place.at]
            if token not in offered:
                rate = rates[leader - 1][rank][place.at]
                offers.append((token, left * rate, (leader - 1, rank, place.at)))
                offered.add(token)
                left *= 1 - rate
        return offers

    def _look_up(self, tail: Run) -> Place:
        courses = [
            _Course(follower, length, rank)
            for length in range(len(tail), 0, -1)
            for rank, follower in enumerate(self._cache.after(tail[-length:]))
        ]
        return Place(tail, courses, 0)


# Tokens of an n-gram, N.
LENGTH = 3

# Most columns of a window, W; the budget may allow fewer.
COLUMNS = 8

# First tokens of n-grams in the pool.
CAPACITY = 1 << 16

# N-grams per first token.
WIDTH = 8


class JacobiWindow:
    """Jacobi window of one sequence.

    Attributes:
        root: absolute position of the root.
        levels: `[N - 1][W]` tokens, the oldest iteration first. Column c of level l is a guess for
            the position c + l after the root; column 0 of the oldest level stands for the root.
    """

    def __init__(self, length: int, columns: int, prompt: Sequence[int]) -> None:
        """Fill the window by repeating the prompt, which ends with the root."""
        self._prompt = prompt
        self.root = len(prompt) - 1
        self.levels = [
            [self._filler(column + level) for column in range(columns)]
            for level in range(length - 1)
        ]

    def path(self, column: int) -> Sequence[int]:
        """Return the tokens after the root, down to the end of a column's diagonal."""
        spine = self.levels[0][1 : column + 1]
        return [*spine, *(level[column] for level in self.levels[1:])]

    def advance(self, newest: Sequence[int | None], committed: int) -> None:
        """Make an iteration.

        Args:
            newest: per column, the target's argmax at the end of its diagonal; None if unverified.
            committed: tokens that the root has moved on.
        """
        self.root += committed
        levels: list[list[int]] = []
        for level, guesses in enumerate((*self.levels[1:], newest)):
            # What was guessed for a position is still about that position.
            moved = [*guesses[committed - 1 :], *([None] * (committed - 1))][: len(guesses)]
            levels.append(
                [
                    self._filler(column + level) if token is None else token
                    for column, token in enumerate(moved)
                ]
            )
        self.levels = levels

    def _filler(self, ahead: int) -> int:
        return self._prompt[(self.root + ahead) % len(self._prompt)]


class _Comb(CandidateTree):
    # A pool guess with a Jacobi window as tree. The oldest iteration is a chain under the root (the
    # spine). Each spine node carries a chain of N - 2 tokens (its diagonal), so a tree mask is the
    # window's attention.

    def __init__(self) -> None:
        super().__init__()
        self._hung: list[tuple[int, int, int]] = []

    def hang(self, window: JacobiWindow, columns: int, rates: Sequence[float]) -> None:
        for column in range(columns):
            node = ROOT
            for depth, token in enumerate(window.path(column)):
                known = self.nodes.get((node, token))
                if known is None:
                    above = 1.0 if node == ROOT else self.scores[node]
                    self._hung.append((node, token, depth))
                    known = self.add(node, token, above * rates[depth])
                node = known

    def settle(self, committed: Sequence[int], rates: HitRates) -> None:
        reached: dict[int | None, int] = {}
        node: int | None = ROOT
        for token in committed:
            reached[node] = token
            node = self.nodes.get((node, token)) if node is not None else None
        for parent, token, depth in self._hung:
            if parent in reached:
                rates.add((depth,), token == reached[parent])


class Lookahead(CandidateDrafter[FollowerModel]):
    """Draft from a Jacobi window per sequence and one shared n-gram pool."""

    name: ClassVar[str] = "lookahead"
    requires = "logits of rejected nodes; fixed sizes (--nodes), for its window"
    paper = "after Lookahead Decoding, Fu et al. 2024, arXiv:2402.02057"
    needs: Needs = Needs(node_logits=True)

    def __init__(self, length: int = LENGTH, columns: int = COLUMNS) -> None:
        """Make a pool of `length`-grams and windows of up to `columns`. Raises InvalidOption."""
        within("length", length, 2, 64)
        within("columns", columns, 1, 4096)
        self._length = length
        self._columns = columns
        self._windows: dict[int, tuple[JacobiWindow, int]] = {}
        super().__init__()

    def reset(self) -> None:
        first = 0.24 * 0.62 ** np.arange(WIDTH)[:, None]
        prior = 1 - (1 - first) * 0.57 ** np.arange(self._length - 1)
        self._model = FollowerModel(1, self._length - 1, CAPACITY, WIDTH, prior[None])
        self._hits = HitRates(np.full(self._columns + self._length, 0.05))

    def open(self, sequence: Generation) -> None:
        self._model.read(sequence.tokens, 0)
        window = JacobiWindow(self._length, self._columns, list(sequence.tokens))
        self._windows[sequence.id] = (window, 0)

    def learn(self, verified: VerifiedDraft) -> None:
        sequence, draft, _, output = verified
        begin, guess = self._settle(sequence)
        assert isinstance(guess, _Comb)
        guess.settle(sequence.tokens[begin:], self._hits)
        window, shown = self._windows[sequence.id]
        newest = _rows(window, shown, draft, output.logits)
        for column, token in enumerate(newest):
            if token is not None:
                oldest = window.levels[0][column] if column else sequence.tokens[begin - 1]
                later = [level[column] for level in window.levels[1:]]
                self._model.add((oldest,), (*later, token))
        window.advance(newest, len(sequence.tokens) - begin)
        self._model.read(sequence.tokens, begin)

    def close(self, sequence: Generation) -> None:
        super().close(sequence)
        self._windows.pop(sequence.id, None)

    def _guess(self, sequence: Generation, budget: Budget) -> CandidateTree:
        # Half of the nodes for the window, the other half for n-grams of the pool.
        teeth = self._length - 2
        columns = (budget.nodes // 2 + 1) // (teeth + 1)
        columns = max(0, min(columns, self._columns, budget.depth - teeth + 1))
        hung = max(0, columns * (teeth + 1) - 1)
        model = self._model
        rest = Budget(budget.nodes - hung, budget.depth)
        guess = _Comb.grow(model.place(sequence.tokens), rest, model.offers, model.follow)
        assert isinstance(guess, _Comb)
        window, _ = self._windows[sequence.id]
        self._windows[sequence.id] = (window, columns)
        guess.hang(window, columns, self._hits.table)
        return guess


def _rows(
    window: JacobiWindow, columns: int, draft: TokenTree, logits: LogitArray
) -> list[int | None]:
    # Per column, the target's argmax at the end of its diagonal; None if that was not verified.
    below = places(draft)
    newest: list[int | None] = [None] * len(window.levels[0])
    for column in range(columns):
        node: int | None = ROOT
        for token in window.path(column):
            node = None if node is None else below.get((node, token))
        if node is not None:
            newest[column] = int(logits[node + 1].argmax())
    return newest
