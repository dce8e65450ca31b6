"""Token rejection (Leviathan et al. 2023; Chen et al. 2023): accept a drawn token with probability
min(1, p/q). The correction comes from the normalised residual (p - q)+, the bonus token from p.
"""

from __future__ import annotations

from typing import ClassVar

from paceline.core.types import SamplingScheme, TokenTree, Verdict
from paceline.sampling.distributions import residual
from paceline.sampling.randomness import Draw, Purpose, Randomness
from paceline.verifiers.base import (
    Shape,
    TargetDistributions,
    Verifier,
    check_chain,
    check_sampling,
    drawn_mass,
    row,
)


class Rejection(Verifier):
    """Lossless for chains drawn from the rows of their distribution."""

    name: ClassVar[str] = "rejection"
    lossless: ClassVar[bool] = True
    accepts: ClassVar[frozenset[SamplingScheme | None]] = frozenset({"iid", "factorised"})
    shape: ClassVar[Shape] = "chain"

    def verify(
        self, draft: TokenTree, target: TargetDistributions, randomness: Randomness
    ) -> Verdict:
        check_sampling(self, draft)
        check_chain(self, draft)
        root = target.position - 1
        for node, token in enumerate(draft.tokens.tolist()):
            position = target.position + node
            p = target.distribution(node - 1)
            q = row(self, draft, node - 1)
            accept = min(1.0, p.prob(token) / drawn_mass(self, q, draft, node))
            if not randomness.bernoulli(accept, Draw(position, Purpose.ACCEPT, root=root)):
                rest = residual(p, q)
                draw = Draw(position, Purpose.RESIDUAL, root=root)
                return Verdict(tuple(range(node)), rest.token(randomness.choice(rest.probs, draw)))
        depth = len(draft)
        distribution = target.distribution(depth - 1)
        bonus = randomness.choice(distribution.probs, Draw(target.position + depth, Purpose.TARGET))
        return Verdict(tuple(range(depth)), distribution.token(bonus))
