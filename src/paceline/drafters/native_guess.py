"""Drafts from native tree expansion (`native/best_first.hpp`)."""

from __future__ import annotations

from collections.abc import Sequence as List
from typing import Any

import numpy as np

from paceline.drafters.best_first import Guess, Offer
from paceline.drafters.statistics import HitRates
from paceline.native.library import address
from paceline.types import ROOT, IntArray, ProbArray, TokenTree


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

    def guess(self, nodes: int) -> NativeGuess:
        """Return the draft of so many nodes that was written."""
        offers = int(self._numbers[3 * nodes + 1])
        numbers = self._numbers[: 3 * nodes + 2 + 2 * offers]
        return NativeGuess(numbers.copy(), self._chances[:nodes].copy())

    def offers(self, count: int, rates: HitRates) -> list[Offer]:
        """Return the offers that were written, whose cells are those of `rates`."""
        each = iter(self._numbers[: 2 * count].tolist())
        chances = self._chances[:count].tolist()
        return [(t, p, rates.cells[cell]) for t, cell, p in zip(each, each, chances, strict=True)]


class NativeGuess(Guess):
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
