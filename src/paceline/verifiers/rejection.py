"""Token rejection (Leviathan et al. 2023; Chen et al. 2023): accept a drawn token with probability
min(1, p/q). The correction comes from the normalised residual (p - q)+, the bonus token from p.
"""

from __future__ import annotations

from typing import ClassVar

from paceline.core.types import SamplingScheme, TokenTree, Verdict
from paceline.sampling.distributions import verified
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
    requires = "chains drawn from a draft model"
    paper = "Leviathan et al. 2023, arXiv:2211.17192; Chen et al. 2023, arXiv:2302.01318"
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
            drawn_mass(self, q, draft, node)
            found = verified(p, q, token, position, root, randomness)
            if found != token:
                return Verdict(tuple(range(node)), found)
        depth = len(draft)
        distribution = target.distribution(depth - 1)
        bonus = randomness.choice(distribution.probs, Draw(target.position + depth, Purpose.TARGET))
        return Verdict(tuple(range(depth)), distribution.token(bonus))
