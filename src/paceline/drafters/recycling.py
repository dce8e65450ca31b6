"""Token recycling (Luo et al. 2024, arXiv:2408.08696): reuse what the target nearly said.

A matrix holds, for every token, the eight tokens that the target last ranked highest after it.
A draft tree is read from it by ranks: the children of a node are the recycled successors of its
token. Every verified row, accepted or not, refreshes the matrix, which persists across requests.
Two harmless additions to the paper: pairs of neighbours in the prompt fill rows still unknown,
and nodes are ordered by measured hit rates of their ranks, so that a tree of any size holds the
likeliest nodes.
"""

from __future__ import annotations

from collections.abc import Sequence as List
from typing import ClassVar, Self

import numpy as np

from paceline.drafters.base import Drafter, DrafterContext
from paceline.drafters.statistics import HitRates
from paceline.drafters.top_rows import top_rows
from paceline.options import arguments
from paceline.sequence import Sequence
from paceline.shapes.published import TOKEN_RECYCLING as TEMPLATE
from paceline.shapes.static import layout
from paceline.target import Output
from paceline.types import ROOT, Budget, IntArray, Needs, TokenTree, Verdict

WIDTH = 8
"""Recycled successors per token."""

_UNKNOWN = -1

DEPTH = len(TEMPLATE[-1])

_PARENTS, _RANKS, _DEPTHS = layout(TEMPLATE)
_LEVELS = [np.flatnonzero(depth == _DEPTHS) for depth in range(1, DEPTH + 1)]

# Share of steps in which the child of each rank was the target's token, by depth of the child,
# given that its parent was reached: a start value, replaced by what is observed.
_PRIOR = np.array([0.36, 0.10, 0.055, 0.035, 0.025, 0.02, 0.015, 0.01])


class Recycling(Drafter):
    """Trees from the target's own rejected candidates: no training, under 4 MB, free."""

    name: ClassVar[str] = "recycling"
    needs: Needs = Needs(node_logits=True)

    def __init__(self, vocab_size: int) -> None:
        """Make an empty matrix for a vocabulary."""
        self._vocab_size = vocab_size
        self._proposed: dict[int, tuple[int, IntArray]] = {}
        self.reset()

    @classmethod
    def create(cls, context: DrafterContext) -> Self:
        """A drafter with an empty matrix for the target's vocabulary."""
        chosen = arguments(cls, "drafter", context.options, "vocab_size")
        return cls(context.target.vocab_size, **chosen)

    def reset(self) -> None:
        """Forget the matrix and the hit rates."""
        self._successors = np.full((self._vocab_size, WIDTH), _UNKNOWN, dtype=np.int64)
        self._rates = HitRates(np.tile(_PRIOR, (DEPTH, 1)), weight=50.0)
        self._steps = 0
        self._order()

    def open(self, sequence: Sequence) -> None:
        """Fill rows that are still unknown with the prompt's own neighbours."""
        for token, successor in zip(sequence.tokens, sequence.tokens[1:], strict=False):
            row = self._successors[token]
            if successor not in row:
                unknown = np.flatnonzero(row == _UNKNOWN)
                if len(unknown):
                    row[unknown[0]] = successor

    def propose(self, sequences: List[Sequence], budgets: List[Budget]) -> list[TokenTree]:
        """The likeliest nodes of the template whose tokens are known."""
        if self._steps % 32 == 0:
            self._order()
        self._steps += 1
        return [self._propose(s, b) for s, b in zip(sequences, budgets, strict=True)]

    def observe(
        self,
        sequences: List[Sequence],
        drafts: List[TokenTree],
        verdicts: List[Verdict],
        outputs: List[Output],
    ) -> None:
        """Recycle every verified row, then score the template against the committed tokens."""
        for sequence, draft, output in zip(sequences, drafts, outputs, strict=True):
            begin, filled = self._proposed.pop(sequence.id)
            self._score(sequence.tokens[begin:], filled)
            rows = [sequence.tokens[begin - 1], *draft.tokens.tolist()]
            best, _ = top_rows(output.logits[: len(rows)], WIDTH)
            # Fewer columns in a toy vocabulary; of a token that stands twice the last row counts.
            self._successors[rows, : best.shape[1]] = best

    def close(self, sequence: Sequence) -> None:
        """Forget what was proposed to the sequence; the matrix stays."""
        self._proposed.pop(sequence.id, None)

    def _order(self) -> None:
        """Value every template node by its path's hit rates and rank nodes by value."""
        rates = self._rates.rates
        values = np.empty(len(TEMPLATE))
        for level in _LEVELS:
            parents = _PARENTS[level]
            above = np.where(parents == ROOT, 1.0, values[parents])
            values[level] = above * rates[_DEPTHS[level] - 1, _RANKS[level]]
        self._values = values
        self._ranking = np.argsort(-values, kind="stable")

    def _propose(self, sequence: Sequence, budget: Budget) -> TokenTree:
        filled = np.full(len(TEMPLATE), _UNKNOWN, dtype=np.int64)
        for level in _LEVELS[: budget.depth]:
            parents = _PARENTS[level]
            above = np.where(parents == ROOT, sequence.root, filled[parents])
            found = self._successors[above, _RANKS[level]]
            filled[level] = np.where(above == _UNKNOWN, _UNKNOWN, found)
        self._proposed[sequence.id] = (len(sequence.tokens), filled)
        # A node is worth no more than its parent and stands behind it, so any head of the ranking
        # of known nodes is a tree.
        ranked = self._ranking[filled[self._ranking] != _UNKNOWN][: budget.nodes]
        nodes = np.sort(ranked)
        place = np.full(len(TEMPLATE) + 1, ROOT, dtype=np.int64)
        place[nodes] = np.arange(len(nodes))
        return TokenTree(
            filled[nodes],
            place[_PARENTS[nodes]],
            source=self.name,
            scores=self._values[nodes],
        )

    def _score(self, committed: list[int], filled: IntArray) -> None:
        """Walk the template along the committed tokens and count hits and misses by rank."""
        node = ROOT
        for depth, token in enumerate(committed[:DEPTH]):
            children = np.flatnonzero(node == _PARENTS)
            known = children[filled[children] != _UNKNOWN]
            hit = ROOT
            for child in known.tolist():
                match = hit == ROOT and filled[child] == token
                self._rates.add((depth, int(_RANKS[child])), match)
                if match:
                    hit = child
            if hit == ROOT:
                return
            node = hit
