"""Wrong verifiers and drafters of several drafts: negative controls, as in `negative`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import ClassVar

import numpy as np

from paceline import tree as trees
from paceline.exactness.drafting import Propose
from paceline.growth.base import Names
from paceline.growth.levels import LevelGrowth
from paceline.law import AGREE, residual
from paceline.randomness import Randomness
from paceline.sampling import top_k_ids
from paceline.types import ROOT, Budget, DraftLaw, Law, LawKind, TokenTree
from paceline.verifiers.base import drawn_mass
from paceline.verifiers.k_seq import scale
from paceline.verifiers.multi_draft import Coin, MultiDraft
from paceline.verifiers.recursive import Recursive
from paceline.verifiers.recursive_distinct import RecursiveDistinct


class ForgetsToNormalise(Recursive):
    """Tries the next sibling against (p - q)+ without normalising it."""

    name: ClassVar[str] = "forgets-to-normalise"
    lossless: ClassVar[bool] = False

    def _decide(
        self, draft: TokenTree, children: Sequence[int], p: Law, q: Law, coin: Coin
    ) -> int | Law:
        for sibling, child in enumerate(children):
            token = int(draft.tokens[child])
            if coin(min(1.0, p.prob(token) / drawn_mass(self, q, draft, child)), sibling):
                return child
            rest = np.maximum(p.probs - q.at(p.ids), 0.0)
            p = Law(rest, p.ids, p.size) if rest.sum() > AGREE else p
        return p


class KeepsRejected(RecursiveDistinct):
    """Leaves a rejected sibling in q, though drawing was without replacement."""

    name: ClassVar[str] = "keeps-rejected"
    lossless: ClassVar[bool] = False

    def _remaining(self, q: Law, token: int) -> Law | None:
        return q


class SortsSiblings(RecursiveDistinct):
    """Tries the likeliest sibling first instead of the one drawn first."""

    name: ClassVar[str] = "sorts-siblings"
    lossless: ClassVar[bool] = False

    def _decide(
        self, draft: TokenTree, children: Sequence[int], p: Law, q: Law, coin: Coin
    ) -> int | Law:
        ordered = sorted(children, key=lambda child: -q.prob(int(draft.tokens[child])))
        return super()._decide(draft, ordered, p, q, coin)


class MergesRepeats(Recursive):
    """Tries a token that was drawn twice only once."""

    name: ClassVar[str] = "merges-repeats"
    lossless: ClassVar[bool] = False

    def _decide(
        self, draft: TokenTree, children: Sequence[int], p: Law, q: Law, coin: Coin
    ) -> int | Law:
        return super()._decide(draft, list(dict.fromkeys(children)), p, q, coin)


class CorrectsUnscaled(MultiDraft):
    """k-SEQ that corrects from (p - q)+, as after a single draw."""

    name: ClassVar[str] = "corrects-unscaled"
    lossless: ClassVar[bool] = False
    accepts: ClassVar[frozenset[LawKind | None]] = frozenset({"iid", "paths"})

    def _decide(
        self, draft: TokenTree, children: Sequence[int], p: Law, q: Law, coin: Coin
    ) -> int | Law:
        rho = scale(p, q, len(children))
        for sibling, child in enumerate(children):
            token = int(draft.tokens[child])
            if coin(min(1.0, p.prob(token) / (rho * q.prob(token))), sibling):
                return child
        return residual(p, q)


class ForgetsTheLikeliest(MultiDraft):
    """Tests the drawn token of top-and-one drafts against the whole row."""

    name: ClassVar[str] = "forgets-the-likeliest"
    lossless: ClassVar[bool] = False
    accepts: ClassVar[frozenset[LawKind | None]] = frozenset({"top_and_one"})

    def _decide(
        self, draft: TokenTree, children: Sequence[int], p: Law, q: Law, coin: Coin
    ) -> int | Law:
        token = int(draft.tokens[children[-1]])
        return children[-1] if coin(min(1.0, p.prob(token) / q.prob(token)), 0) else residual(p, q)


class ClaimsTheLikeliest(LevelGrowth):
    """Takes a row's likeliest tokens as children and declares them drawn."""

    name: ClassVar[str] = "claims-the-likeliest"
    kind: ClassVar[LawKind | None] = "without_replacement"

    def _level(
        self, rows: list[Law], counts: list[int], names: Names, randomness: Randomness
    ) -> list[list[int]]:
        return [
            [q.token(index) for index in top_k_ids(q.probs, count).tolist()]
            for q, count in zip(rows, counts, strict=True)
        ]


def prunes_unlikely(propose: Propose, threshold: float) -> Propose:
    """Build a drafter that prunes drawn nodes of low draft probability, with their rows."""

    def pruned(context: tuple[int, ...], randomness: Randomness, budget: Budget) -> TokenTree:
        tree = propose(context, randomness, budget)
        if tree.law is None:
            return tree
        kept: list[int] = []
        for node, (token, parent) in enumerate(
            zip(tree.tokens.tolist(), tree.parents.tolist(), strict=True)
        ):
            likely = tree.law.rows[parent].prob(token) >= threshold
            if likely and (parent == ROOT or parent in kept):
                kept.append(node)
        new = {ROOT: ROOT} | {node: index for index, node in enumerate(kept)}
        smaller = trees.take(replace(tree, law=None), np.array(kept, dtype=np.int64))
        parents = set(smaller.parents.tolist())
        rows = {new[old]: row for old, row in tree.law.rows.items() if new.get(old) in parents}
        return replace(smaller, law=DraftLaw(tree.law.kind, rows))

    return pruned
