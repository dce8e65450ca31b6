"""Lenient token rejection (Leviathan et al. 2023, arXiv:2211.17192, appendix), lossy: accept with
probability min(1, r p/q), r the inverse lenience, correct from the normalised (r p - q)+. No token
is emitted with more than r times its target probability. Lossless limit: r = 1; greedy requests
are greedy verification for every r.
"""

from __future__ import annotations

import math
from typing import ClassVar

from paceline.core import tree as trees
from paceline.core.options import require
from paceline.core.types import ROOT, SamplingScheme, TokenTree, Verdict
from paceline.sampling.distributions import one_hot, residual
from paceline.sampling.randomness import Draw, Purpose, Randomness
from paceline.verifiers.base import (
    TargetDistributions,
    Verifier,
    check_chain,
    check_sampling,
    drawn_mass,
    row,
)


class Relaxed(Verifier):
    """Accept chains drawn from the rows of their distribution, and deterministic drafts."""

    name: ClassVar[str] = "relaxed"
    guarantee = "lossy: accepts with r times p/q; greedy requests stay exact"
    requires = "deterministic drafts, or chains drawn from a draft model"
    paper = "lenience, Leviathan et al. 2023, arXiv:2211.17192"
    proof = "paceline.methods.proof:RELAXED"
    lossless: ClassVar[bool] = False
    accepts: ClassVar[frozenset[SamplingScheme | None]] = frozenset({None, "iid", "factorised"})

    def __init__(self, ratio: float = 2.0) -> None:
        """Set the ratio by which acceptance may exceed p/q, 1 or more. Raises InvalidOption."""
        require(math.isfinite(ratio) and ratio >= 1, "ratio", ratio, "1 (lossless) or more")
        self.ratio = ratio

    def verify(
        self, draft: TokenTree, target: TargetDistributions, randomness: Randomness
    ) -> Verdict:
        # A token that was not drawn has q = 1; siblings are tried in node order, each against
        # what earlier rejections left of p.
        check_sampling(self, draft)
        if draft.sampling is not None:
            check_chain(self, draft)
        below = trees.children(draft)
        root = target.position - 1
        path: list[int] = []
        node = ROOT
        while children := below.get(node):
            position = target.position + len(path)
            p = target.distribution(node)
            for sibling, child in enumerate(children):
                token = int(draft.tokens[child])
                q = one_hot(token, p.size) if draft.sampling is None else row(self, draft, node)
                accept = self.ratio * p.prob(token) / drawn_mass(self, q, draft, child)
                draw = Draw(position, Purpose.ACCEPT, sibling, root)
                if randomness.bernoulli(min(1.0, accept), draw):
                    path.append(child)
                    node = child
                    break
                p = residual(p, q, self.ratio)
            else:
                draw = Draw(position, Purpose.RESIDUAL, root=root)
                return Verdict(tuple(path), p.token(randomness.choice(p.probs, draw)))
        distribution = target.distribution(node)
        draw = Draw(target.position + len(path), Purpose.TARGET)
        return Verdict(tuple(path), distribution.token(randomness.choice(distribution.probs, draw)))
