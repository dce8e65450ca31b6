"""Token rejection (Leviathan et al. 2023; Chen et al. 2023): accept with probability min(1, p/q).

The rule for chains whose tokens were drawn from a draft model. At the first rejection the
correction comes from the normalised residual (p - q)+; after a fully accepted chain the bonus
comes from p.
"""

from __future__ import annotations

from typing import ClassVar

import numpy as np

from paceline import tree as trees
from paceline.errors import IncompatibleDraft
from paceline.randomness import Draw, Purpose, Randomness
from paceline.sampling import Law
from paceline.types import ROOT, LawKind, ProbArray, TokenTree, Verdict
from paceline.verifiers.base import TargetLaws, check_law

_AGREE = 1e-12
"""Residual mass under which p and q agree up to rounding; the residual is then p itself."""


def residual(p: ProbArray, q: ProbArray) -> ProbArray:
    """float64 `[vocabulary]` weights of (p - q)+, or p where nothing is left of it."""
    rest = np.maximum(p - q, 0.0)
    return rest if rest.sum() > _AGREE else p


class Rejection:
    """Lossless for chains drawn from the rows of their law."""

    name: ClassVar[str] = "rejection"
    lossless: ClassVar[bool] = True
    accepts: ClassVar[frozenset[LawKind | None]] = frozenset({"iid"})

    def verify(self, draft: TokenTree, target: TargetLaws, randomness: Randomness) -> Verdict:
        """Accept or correct token by token along the chain."""
        check_law(self, draft)
        if not trees.is_chain(draft):
            raise IncompatibleDraft(
                f"verifier '{self.name}' takes chains, but this draft has branches; "
                "use verifier 'sample-match'"
            )
        root = target.position - 1
        for node, token in enumerate(draft.tokens.tolist()):
            position = target.position + node
            p = target.law(node - 1)
            q = self._row(draft, node, token)
            accept = min(1.0, p.prob(token) / float(q[token]))
            if not randomness.bernoulli(accept, Draw(position, Purpose.ACCEPT, root=root)):
                weights = residual(p.dense(), q)
                draw = Draw(position, Purpose.RESIDUAL, root=root)
                return Verdict(tuple(range(node)), randomness.choice(weights, draw))
        depth = len(draft)
        law: Law = target.law(depth - 1 if depth else ROOT)
        bonus = randomness.choice(law.probs, Draw(target.position + depth, Purpose.TARGET))
        return Verdict(tuple(range(depth)), law.token(bonus))

    def _row(self, draft: TokenTree, node: int, token: int) -> ProbArray:
        """The row that `node` was drawn from, checked to hold its token."""
        assert draft.law is not None  # check_law refused deterministic drafts
        q = draft.law.rows.get(int(draft.parents[node]))
        if q is None or not q[token] > 0:
            raise IncompatibleDraft(
                f"verifier '{self.name}': node {node} holds token {token}, which its draft law "
                "gives no probability; the drafter must report the row it drew from"
            )
        return q
