"""Coupled verification: the target's token is argmax(log p + g) with noise g keyed by position.

Whatever is drafted, the emitted token is the one that plain sampling with the same seed emits at
that position, so identity can be tested token by token at any temperature. A drafter that uses
the same g agrees more often: acceptance is at least (1 - TV) / (1 + TV).
"""

from __future__ import annotations

from typing import ClassVar

from paceline.randomness import Randomness
from paceline.types import LawKind, TokenTree, Verdict
from paceline.verifiers.base import TargetLaws, Verifier, check_law, walk


class Coupled(Verifier):
    """Lossless and seed-exact for every tree that depends on the noise alone or not at all."""

    name: ClassVar[str] = "coupled"
    lossless: ClassVar[bool] = True
    accepts: ClassVar[frozenset[LawKind | None]] = frozenset(
        {None, "iid", "paths", "without_replacement", "top_and_one", "factorised"}
    )
    follows_noise: ClassVar[bool] = True

    def verify(self, draft: TokenTree, target: TargetLaws, randomness: Randomness) -> Verdict:
        """Follow the token that each position's noise selects."""
        check_law(self, draft)
        return walk(
            draft,
            lambda node, depth: target.winner(node, target.position + depth, randomness),
        )
