"""Coupled verification: the target's token is argmax(log p + g) with noise g keyed by position.

Whatever is drafted, the emitted token is the one that plain sampling with the same seed emits at
that position, so identity can be tested token by token at any temperature. A drafter that uses
the same g agrees more often: acceptance is at least (1 - TV) / (1 + TV).
"""

from __future__ import annotations

from typing import ClassVar

import numpy as np

from paceline.randomness import Draw, Purpose, Randomness
from paceline.types import Law, LawKind, TokenTree, Verdict
from paceline.verifiers.base import TargetLaws, Verifier, check_law, walk


def gumbel_max(law: Law, position: int, randomness: Randomness) -> int:
    """The token of `law` that wins under the noise of `position`; distributed as `law`.

    With Gumbel noise g = -log(-log u), argmax(log p + g) is argmin(-log(u) / p). Since
    -log(u) >= 1 - u, the ratio (1 - u) / p bounds each token's score from below, and only the few
    tokens whose bound does not exceed a score already reached need a logarithm.
    """
    if len(law.probs) == 1:
        return law.token(0)
    uniform = randomness.uniform(law.size, Draw(position, Purpose.NOISE))
    if law.ids is not None:
        uniform = uniform[law.ids]
    bound = 1.0 - uniform
    with np.errstate(divide="ignore", over="ignore"):
        bound /= law.probs
    first = int(bound.argmin())
    reached = -np.log(uniform[first]) / law.probs[first]
    candidates = np.flatnonzero(bound <= reached)
    scores = -np.log(uniform[candidates]) / law.probs[candidates]
    return law.token(int(candidates[scores.argmin()]))


class Coupled(Verifier):
    """Lossless and seed-exact for every tree that depends on the noise alone or not at all."""

    name: ClassVar[str] = "coupled"
    lossless: ClassVar[bool] = True
    accepts: ClassVar[frozenset[LawKind | None]] = frozenset(
        {None, "iid", "paths", "without_replacement", "top_and_one", "factorised"}
    )

    def verify(self, draft: TokenTree, target: TargetLaws, randomness: Randomness) -> Verdict:
        """Follow the token that each position's noise selects."""
        check_law(self, draft)
        return walk(
            draft,
            lambda node, depth: gumbel_max(target.law(node), target.position + depth, randomness),
        )
