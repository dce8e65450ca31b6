"""Union of several drafts, expanded best-first with learned acceptance probabilities."""

from __future__ import annotations

from array import array
from collections.abc import Sequence as List

import numpy as np

from paceline.drafters.best_first import Guess, Offer
from paceline.drafters.native_guess import Workspace
from paceline.drafters.statistics import HitRates
from paceline.native.library import calls, library
from paceline.types import ROOT, Budget, TokenTree

# Confidence bins.
_LEVELS = 10

# Conditional node probability in drafts without scores.
_UNSCORED = 0.6

# Prior weight of a hit rate, in trials.
_BELIEF = 12.0

_ABSENT = -2

# The nodes, and per node the index of the first draft that has it.
Blended = tuple[Guess, list[int]]


class Blender:
    """Acceptance probabilities of nodes by proposing drafters and confidence.

    Attributes:
        rates: hit rates by (set of proposers, confidence bin), given that no likelier token comes.
    """

    def __init__(self, sources: int) -> None:
        """Start from the prior that the drafters err independently."""
        levels = (np.arange(_LEVELS) + 0.5) / _LEVELS
        self.rates = HitRates(np.tile(levels, (1 << sources, 1)), _BELIEF)
        self._out = Workspace()

    def blend(self, drafts: List[TokenTree], budget: Budget) -> Blended:
        """Return the most probable nodes of the union, by native kernels if available."""
        return self._in_python(drafts, budget) if library() is None else self._in_c(drafts, budget)

    def _in_c(self, drafts: List[TokenTree], budget: Budget) -> Blended:
        numbers, scores = [len(draft) for draft in drafts], array("d")
        total = sum(numbers)
        for draft in drafts:
            numbers += draft.tokens.tolist()
            numbers += draft.parents.tolist()
            scores.extend(_scores(draft))
        given = array("i", numbers)
        rates, sources = self.rates.flat, array("i", bytes(4 * budget.nodes))
        out = self._out
        out.fit(budget.nodes, total)
        nodes = calls("grow_").blend(
            *(len(drafts), given.buffer_info()[0], scores.buffer_info()[0]),
            *(budget.nodes, budget.depth, _LEVELS, rates.buffer_info()[0]),
            *(out.numbers, out.chances, sources.buffer_info()[0]),
        )
        if nodes < 0:
            raise MemoryError("no memory to blend drafts")
        return out.guess(nodes), sources[:nodes].tolist()

    def _in_python(self, drafts: List[TokenTree], budget: Budget) -> Blended:
        readers = [_Reader(draft) for draft in drafts]

        def offers(place: tuple[int, ...], reach: float) -> List[Offer]:
            return self._offers(readers, place)

        def follow(place: tuple[int, ...], token: int) -> tuple[int, ...]:
            return tuple(
                reader.child(node, token) for reader, node in zip(readers, place, strict=True)
            )

        root = (ROOT,) * len(drafts)
        guess = Guess.grow(root, budget, offers, follow)
        places: list[tuple[int, ...]] = []
        for parent, token in zip(guess.parents, guess.tokens, strict=True):
            places.append(follow(root if parent == ROOT else places[parent], token))
        return guess, [_first(place) for place in places]

    def _offers(self, readers: List[_Reader], place: tuple[int, ...]) -> List[Offer]:
        found: dict[int, tuple[float, int]] = {}
        for index, (reader, node) in enumerate(zip(readers, place, strict=True)):
            for token, chance in reader.offers(node):
                miss, sources = found.get(token, (1.0, 0))
                found[token] = (miss * (1 - chance), sources | 1 << index)
        left = 1.0
        out: list[Offer] = []
        for token, (miss, sources) in sorted(found.items(), key=_likeliest):
            level = min(int((1 - miss) * _LEVELS), _LEVELS - 1)
            chance = left * self.rates.table[sources][level]
            left -= chance
            out.append((token, chance, (sources, level)))
        return out


class _Reader:
    def __init__(self, draft: TokenTree) -> None:
        self._nodes: dict[tuple[int, int], int] = {}
        self._offers: dict[int, list[tuple[int, float]]] = {}
        scores = _scores(draft)
        pairs = zip(draft.parents.tolist(), draft.tokens.tolist(), strict=True)
        for node, (parent, token) in enumerate(pairs):
            self._nodes[parent, token] = node
            above = 1.0 if parent == ROOT else scores[parent]
            chance = scores[node] / above if above else 0.0
            self._offers.setdefault(parent, []).append((token, chance))

    def offers(self, node: int) -> List[tuple[int, float]]:
        return self._offers.get(node, ())

    def child(self, node: int, token: int) -> int:
        return self._nodes.get((node, token), _ABSENT)


def _scores(draft: TokenTree) -> list[float]:
    # Path probability of each node; drafts without scores get a constant conditional probability.
    scores: list[float] = [] if draft.scores is None else draft.scores.tolist()
    if scores:
        return scores
    for parent in draft.parents.tolist():
        scores.append(_UNSCORED * (1.0 if parent == ROOT else scores[parent]))
    return scores


def _first(place: tuple[int, ...]) -> int:
    return next(index for index, node in enumerate(place) if node != _ABSENT)


def _likeliest(item: tuple[int, tuple[float, int]]) -> float:
    return item[1][0]
