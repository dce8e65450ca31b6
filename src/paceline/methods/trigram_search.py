"""ADED as published (Liu et al. 2024, arXiv:2407.12021): a tri-gram table of a corpus, adapted to
the text, and Monte-Carlo tree search of the drafts. `aded` is our variant.

Read from the authors' code, whose sum of weights along a path takes the wrong token; here it takes
the right one.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path
from random import Random
from typing import ClassVar, Self

import numpy as np

from paceline.core.options import arguments, require
from paceline.core.types import ROOT, Budget, IntArray, TokenTree
from paceline.drafters.base import Drafter, DrafterContext
from paceline.methods.datastore.drafter import SuffixArray
from paceline.sampling.generation import Generation
from paceline.trees.candidates import CandidateTree

# Best successors that are kept of a pair in the corpus.
WIDTH = 12

# Tokens at the end of the text whose tri-grams gain a weight, up to the most, at every draft.
WINDOW, GAIN, MOST = 16, 0.04, 3.0

# Trials of a search, tokens that one looks ahead, and paths that are kept.
TRIALS, LENGTH, PATHS = 150, 3, 24

# Exploration constants c1 and c2.
_BASE, _SCALE = 32.0, 8.0

Pair = tuple[int, int]


class Trigrams:
    """Weights of tokens after two others: their shares in the corpus, and what the text added."""

    def __init__(self, corpus: IntArray | None = None) -> None:
        """Count a corpus, int `[tokens]`."""
        text = np.asarray([] if corpus is None else corpus, np.int64)
        self._vocabulary = int(text.max(initial=0)) + 1
        pairs, tokens = text[:-2] * self._vocabulary + text[1:-1], text[2:]
        order = np.lexsort((tokens, pairs))
        pairs, tokens = pairs[order], tokens[order]
        new = np.ones(len(pairs), bool)
        new[1:] = (pairs[1:] != pairs[:-1]) | (tokens[1:] != tokens[:-1])
        begins = np.flatnonzero(new)
        counts = np.diff(np.append(begins, len(pairs)))
        pairs, tokens = pairs[begins], tokens[begins]
        order = np.lexsort((tokens, -counts, pairs))
        self._pairs, self._tokens, counts = pairs[order], tokens[order], counts[order]
        totals = np.add.reduceat(counts, np.flatnonzero(np.diff(self._pairs, prepend=-1)))
        self._shares = counts / np.repeat(totals, np.unique(self._pairs, return_counts=True)[1])
        self._known: dict[Pair, dict[int, float]] = {}

    def after(self, pair: Pair) -> dict[int, float]:
        """Return the weights of successors, the best of the corpus first. It may be changed."""
        known = self._known.get(pair)
        if known is None:
            key = pair[0] * self._vocabulary + pair[1]
            inside = max(pair) < self._vocabulary
            begin = int(np.searchsorted(self._pairs, key)) if inside else 0
            end = int(np.searchsorted(self._pairs, key, "right")) if inside else 0
            best = slice(begin, min(end, begin + WIDTH))
            known = self._known[pair] = dict(
                zip(self._tokens[best].tolist(), self._shares[best].tolist(), strict=True)
            )
        return known

    def adapt(self, text: Sequence[int]) -> None:
        """Add to the weights of the tri-grams at the end of a text."""
        end = text[-WINDOW:]
        for first, second, token in zip(end, end[1:], end[2:], strict=False):
            weights = self.after((first, second))
            weights[token] = min(MOST, weights.get(token, 0.0) + GAIN)


class _GrownBranch:
    __slots__ = ("below", "gain", "pair", "visits", "weight")

    def __init__(self, pair: Pair, weight: float) -> None:
        self.pair = pair
        self.weight = weight
        self.visits = 0
        self.gain = 0.0
        self.below: list[_GrownBranch] = []

    def next(self) -> _GrownBranch:
        # PUCT: the highest mean gain, plus a bonus for the likely but little tried.
        log = math.log((self.visits + _SCALE + 1) / _SCALE)
        explore = (_BASE + log) * math.sqrt(self.visits)

        def value(child: _GrownBranch) -> float:
            if not child.visits:
                return math.inf
            return child.gain / child.visits + explore * child.weight / (1 + child.visits)

        return max(self.below, key=value)


def search(table: Trigrams, pair: Pair, trials: int, random: Random) -> list[list[int]]:
    """Return the paths after a pair that were visited most, the first one most."""
    root = _GrownBranch(pair, 0.0)
    for _ in range(trials):
        path = [root]
        while path[-1].below and len(path) <= LENGTH:
            path.append(path[-1].next())
        end = path[-1]
        if len(path) <= LENGTH:
            end.below = [
                _GrownBranch((end.pair[1], token), weight)
                for token, weight in table.after(end.pair).items()
            ]
            path += end.below[:1]
        gain = 1.0 + sum(branch.weight for branch in path)
        pair = path[-1].pair
        for _ in range(LENGTH + 1 - len(path)):  # a random rollout
            weights = table.after(pair)
            if not weights:
                break
            [token] = random.choices([*weights], [*weights.values()])
            gain += weights[token]
            pair = pair[1], token
        for branch in path:
            branch.visits += 1
            branch.gain += gain
    found: list[tuple[int, list[int]]] = []
    level: list[tuple[list[int], _GrownBranch]] = [([], root)]
    while level:
        level = [
            ([*path, child.pair[1]], child)
            for path, branch in level
            for child in branch.below
            if child.visits
        ]
        found += [(branch.visits, path) for path, branch in level]
    found.sort(key=lambda each: -each[0])
    return [path for _, path in found[:PATHS]]


class TrigramSearch(Drafter):
    """Drafts the paths that a tree search over tri-grams visited most."""

    name: ClassVar[str] = "aded-mcts"
    requires = "an index of a corpus (paceline index), best"
    paper = "ADED, Liu et al. 2024, arXiv:2407.12021"

    def __init__(self, corpus: IntArray | None = None, trials: int = TRIALS, seed: int = 0) -> None:
        """Count a corpus, int `[tokens]`. Raises InvalidOption for less than one trial."""
        require(1 <= trials <= 4096, "trials", trials, "from 1 to 4096")
        self._corpus = corpus
        self._trials = trials
        self._seed = seed
        self.reset()

    @classmethod
    def create(cls, context: DrafterContext) -> Self:
        """Read the corpus from an index (`paceline index`) if one is named.

        Raises InvalidOption: unknown options, no index, or one of another tokenizer.
        """
        options = dict(context.options)
        folder = options.pop("index", None)
        corpus = None
        if folder is not None:
            index = SuffixArray(Path(folder).expanduser(), most=context.target.vocab_size)
            corpus = np.asarray(index.tokens)
        return cls(corpus, **arguments(cls, "drafter", options, "corpus"))

    def reset(self) -> None:
        self.table = Trigrams(self._corpus)

    def draft(self, sequence: Generation, budget: Budget) -> TokenTree:
        return self._draft(sequence.tokens, budget).tree(self.name)

    def _draft(self, text: Sequence[int], budget: Budget) -> CandidateTree:
        draft = CandidateTree()
        if not (budget.nodes and budget.depth) or len(text) < 2:
            return draft
        table, pair = self.table, (text[-2], text[-1])
        table.adapt(text)
        # Of the seed and the text alone, so that no batch changes it.
        random = Random(f"{self._seed} {text[-WINDOW:]}")
        scores: dict[tuple[int, ...], float] = {}
        for path in search(table, pair, self._trials, random):
            last = (*pair, *path)[-2:]
            weights = table.after((last[0], last[1]))
            best = [max(weights, key=weights.__getitem__)] if weights else []
            reach, before = 1.0, pair
            for depth, token in enumerate([*path, *best], 1):
                after = table.after(before)
                reach *= after[token] / sum(after.values())
                scores[(*path, *best)[:depth]] = reach
                before = before[1], token
        nodes: dict[tuple[int, ...], int] = {(): ROOT}
        for tokens in sorted(scores, key=lambda each: (-scores[each], len(each))):
            if len(draft.tokens) < budget.nodes and len(tokens) <= budget.depth:
                nodes[tokens] = draft.add(nodes[tokens[:-1]], tokens[-1], scores[tokens])
        return draft
