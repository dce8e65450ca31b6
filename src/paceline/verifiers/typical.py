"""Typical acceptance (Medusa: Cai et al. 2024, arXiv:2401.10774, section 3.3.1), lossy: accept x if
p(x) > min(epsilon, delta exp(-H(p))); the deepest such path wins, ties by likelihood. Lossless
limit: epsilon >= 1 and delta at least the vocabulary's size accept nothing. Greedy requests are
greedy verification for all thresholds.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import ClassVar

from paceline import tree as trees
from paceline.law import gumbel_max
from paceline.options import require
from paceline.randomness import Randomness
from paceline.types import ROOT, Law, LawKind, TokenTree, Verdict
from paceline.verifiers.base import TargetLaws, Verifier, check_law
from paceline.verifiers.pardon import entropy


class Typical(Verifier):
    """Accept drafts of every kind, chains and trees, however drawn."""

    name: ClassVar[str] = "typical"
    lossless: ClassVar[bool] = False
    accepts: ClassVar[frozenset[LawKind | None]] = frozenset(
        {None, "iid", "paths", "without_replacement", "top_and_one", "factorised"}
    )

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

    def stands(self, law: Law, p: float) -> bool:
        """Return whether a token of probability `p` is accepted; bounds on H are tried first."""
        if p > self.epsilon:
            return True
        impossible = p < 0.999 * self.delta / len(law.probs)  # entropy is at most log(support)
        return not impossible and p > self.delta * math.exp(-entropy(law))

    def verify(self, draft: TokenTree, target: TargetLaws, randomness: Randomness) -> Verdict:
        check_law(self, draft)
        path = _longest(draft, target.law, self.stands)
        law = target.law(path[-1] if path else ROOT)
        if self.greedy_next:
            return Verdict(path, law.argmax())
        return Verdict(path, gumbel_max(law, target.position + len(path), randomness))


def _longest(
    draft: TokenTree, law: Callable[[int], Law], stands: Callable[[Law, float], bool]
) -> tuple[int, ...]:
    # Ties by likelihood, then by node order.
    reached: dict[int, tuple[int, float]] = {ROOT: (0, 0.0)}
    for node, (parent, token) in enumerate(
        zip(draft.parents.tolist(), draft.tokens.tolist(), strict=True)
    ):
        if parent in reached:
            above = law(parent)
            p = above.prob(token)
            if stands(above, p):
                depth, likelihood = reached[parent]
                reached[node] = (depth + 1, likelihood + math.log(p))
    return trees.path_to(draft, max(reached, key=reached.__getitem__))
