"""Typical acceptance (Medusa: Cai et al. 2024, arXiv:2401.10774, section 3.3.1), lossy: accept x if
p(x) > min(epsilon, delta exp(-H(p))); the deepest such path wins, ties by likelihood. Lossless
limit: epsilon >= 1 and delta at least the vocabulary's size accept nothing. Greedy requests are
greedy verification for all thresholds.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import ClassVar

from paceline.core import tree as trees
from paceline.core.options import require
from paceline.core.types import ROOT, Distribution, SamplingScheme, TokenTree, Verdict
from paceline.methods.relaxed_acceptance import entropy
from paceline.sampling.distributions import gumbel_max
from paceline.sampling.randomness import Randomness
from paceline.verifiers.base import ANY, TargetDistributions, Verifier, check_sampling


class Typical(Verifier):
    """Accept drafts of every kind, chains and trees, however drawn."""

    name: ClassVar[str] = "typical"
    guarantee = "lossy: accepts typical tokens; greedy requests stay exact"
    requires = "any draft"
    paper = "Medusa, Cai et al. 2024, arXiv:2401.10774"
    proof = "paceline.methods.proof:TYPICAL"
    lossless: ClassVar[bool] = False
    accepts: ClassVar[frozenset[SamplingScheme | None]] = ANY

    def __init__(self, epsilon: float = 0.09, delta: float = 0.3, greedy_next: bool = True) -> None:
        """Set the thresholds; the defaults are those of the authors' `medusa_generate`.

        `greedy_next` ends steps with the argmax, as in the paper, instead of plain sampling's
        token.

        Raises:
            InvalidOption: a threshold is negative or not finite.
        """
        for key, value in (("epsilon", epsilon), ("delta", delta)):
            require(math.isfinite(value) and value >= 0, key, value, "0 or more")
        self.epsilon = epsilon
        self.delta = delta
        self.greedy_next = greedy_next

    def stands(self, distribution: Distribution, p: float) -> bool:
        """Return whether a token of probability `p` is accepted; bounds on H are tried first."""
        if p > self.epsilon:
            return True
        impossible = p < 0.999 * self.delta / len(
            distribution.probs
        )  # entropy is at most log(support)
        return not impossible and p > self.delta * math.exp(-entropy(distribution))

    def verify(
        self, draft: TokenTree, target: TargetDistributions, randomness: Randomness
    ) -> Verdict:
        check_sampling(self, draft)
        path = _longest(draft, target.distribution, self.stands)
        distribution = target.distribution(path[-1] if path else ROOT)
        if self.greedy_next:
            return Verdict(path, distribution.argmax())
        return Verdict(path, gumbel_max(distribution, target.position + len(path), randomness))


def _longest(
    draft: TokenTree,
    distribution: Callable[[int], Distribution],
    stands: Callable[[Distribution, float], bool],
) -> tuple[int, ...]:
    # Ties by likelihood, then by node order.
    reached: dict[int, tuple[int, float]] = {ROOT: (0, 0.0)}
    for node, (parent, token) in enumerate(
        zip(draft.parents.tolist(), draft.tokens.tolist(), strict=True)
    ):
        if parent in reached:
            above = distribution(parent)
            p = above.prob(token)
            if stands(above, p):
                depth, likelihood = reached[parent]
                reached[node] = (depth + 1, likelihood + math.log(p))
    return trees.path_to(draft, max(reached, key=reached.__getitem__))
