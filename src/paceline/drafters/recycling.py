"""Token recycling (Luo et al. 2024, arXiv:2408.08696): a matrix of each token's top-8 successors in
the target's last logits, read as a draft tree by ranks. Every verified row refreshes it, and it
persists across requests. Added: prompt bigrams fill unknown rows, and nodes are ordered by the
hit rates of their ranks.
"""

from __future__ import annotations

import itertools
from array import array
from collections.abc import Sequence
from typing import ClassVar, Self

import numpy as np

from paceline.core.options import arguments
from paceline.core.types import ROOT, Budget, IntArray, LogitArray, Needs, TokenTree
from paceline.drafters.base import Drafter, DrafterContext
from paceline.native.sampling import best, rank_into
from paceline.policy.acceptance import HitRates
from paceline.policy.constants import RANK_RATES
from paceline.policy.draft_gate import DraftGate
from paceline.sampling.generation import Generation, VerifiedDraft
from paceline.trees.candidates import CandidateTree
from paceline.trees.shapes import TOKEN_RECYCLING as TEMPLATE
from paceline.trees.shapes import layout


def top_rows(logits: LogitArray, k: int) -> tuple[IntArray, LogitArray]:
    """Return int64 `[n, k]` ids and values of each row's `k` largest entries, largest first."""
    k = min(k, logits.shape[1])
    found = best(logits, k)
    if found is None:
        order = np.argsort(-logits, axis=1, kind="stable")[:, :k]
        found = order, np.take_along_axis(logits, order, 1)
    return found


# Recycled successors per token.
WIDTH = 8

_UNKNOWN = -1

DEPTH = len(TEMPLATE[-1])

_PARENTS, _RANKS, _DEPTHS = (column.tolist() for column in layout(TEMPLATE))
# Children of the root, and of each node of the template.
_BELOW = [
    [node for node, above in enumerate(_PARENTS) if above == at]
    for at in range(ROOT, len(TEMPLATE))
]


class Recycling(Drafter):
    """Draft trees from the target's rejected candidates: no training, under 2 MB."""

    name: ClassVar[str] = "recycling"
    requires = "logits of rejected nodes"
    paper = "after Token Recycling, Luo et al. 2024, arXiv:2408.08696"
    needs: Needs = Needs(node_logits=True)

    def __init__(self, vocab_size: int) -> None:
        self._vocab_size = vocab_size
        self._proposed: dict[int, int] = {}
        self._gate = DraftGate.of_learning()
        self._nothing = CandidateTree().tree(self.name)
        self.reset()

    @classmethod
    def create(cls, context: DrafterContext) -> Self:
        chosen = arguments(cls, "drafter", context.options, "vocab_size")
        return cls(context.target.vocab_size, **chosen)

    def reset(self) -> None:
        # Row by row. Single entries are read and written at every step.
        self._successors = array("i", [_UNKNOWN]) * (self._vocab_size * WIDTH)
        self._rates = HitRates(np.tile(RANK_RATES, (DEPTH, 1)), weight=50.0)
        self._steps = 0
        self._order()

    def open(self, sequence: Generation) -> None:
        known = self._successors
        for token, successor in zip(sequence.tokens, sequence.tokens[1:], strict=False):
            row = known[token * WIDTH : (token + 1) * WIDTH]
            if _UNKNOWN in row and successor not in row:
                known[token * WIDTH + row.index(_UNKNOWN)] = successor

    def propose(
        self, sequences: Sequence[Generation], budgets: Sequence[Budget]
    ) -> list[TokenTree]:
        if not self._gate.learns(budgets):
            return [self._nothing] * len(sequences)
        if self._steps % 32 == 0:
            self._order()
        self._steps += 1
        return super().propose(sequences, budgets)

    def observe(self, step: Sequence[VerifiedDraft]) -> None:
        if not self._proposed:  # the step was left out
            return
        for each in step:
            begin = self._proposed[each.sequence.id]
            self._score(each.sequence.tokens[begin - 1 :])
        known = self._successors
        for sequence, draft, _, output in step:
            rows = [sequence.tokens[self._proposed.pop(sequence.id) - 1], *draft.tokens.tolist()]
            rank_into(np.ascontiguousarray(output.logits, np.float32), rows, known, WIDTH)

    def close(self, sequence: Generation) -> None:
        self._proposed.pop(sequence.id, None)

    def _order(self) -> None:
        rates = self._rates.table
        values: list[float] = []
        for parent, rank, depth in zip(_PARENTS, _RANKS, _DEPTHS, strict=True):
            values.append((1.0 if parent == ROOT else values[parent]) * rates[depth - 1][rank])
        self._values = values
        self._ranking = sorted(range(len(values)), key=values.__getitem__, reverse=True)

    def draft(self, sequence: Generation, budget: Budget) -> TokenTree:
        self._proposed[sequence.id] = len(sequence.tokens)
        return self.after(sequence.root, budget)

    def after(self, root: int, budget: Budget) -> TokenTree:
        """Return what the matrix knows behind a token."""
        known, values = self._successors, self._values
        draft = CandidateTree()
        tokens = draft.tokens
        places = {ROOT: ROOT}
        # A node is worth no more than its parent and comes after it, so parents come first.
        for node in self._ranking if budget.nodes > 0 else ():
            parent = places.get(_PARENTS[node])
            if parent is None or _DEPTHS[node] > budget.depth:
                continue
            above = root if parent == ROOT else tokens[parent]
            token = known[above * WIDTH + _RANKS[node]]
            if token != _UNKNOWN:
                places[node] = draft.add(parent, token, values[node])
                if len(tokens) == budget.nodes:
                    break
        return draft.tree(self.name)

    def _score(self, tokens: list[int]) -> None:
        # Count hits and misses by rank along the committed tokens.
        node, known = ROOT, self._successors
        for depth, (above, token) in enumerate(itertools.pairwise(tokens[: DEPTH + 1])):
            hit = ROOT
            for child in _BELOW[node + 1]:
                found = known[above * WIDTH + _RANKS[child]]
                if found == _UNKNOWN:
                    continue
                match = hit == ROOT and found == token
                self._rates.count(depth * WIDTH + _RANKS[child], match)
                if match:
                    hit = child
            if hit == ROOT:
                return
            node = hit
