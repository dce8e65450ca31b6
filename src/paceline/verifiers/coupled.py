"""Gumbel-coupled verification: the target's token is argmax(log p + g), with Gumbel noise g
keyed by position. The text equals plain sampling with the same seed, token by token. A drafter
with the same g is accepted with probability at least (1 - TV) / (1 + TV).
"""

from __future__ import annotations

from typing import ClassVar

from paceline.randomness import Randomness
from paceline.types import LawKind, TokenTree, Verdict
from paceline.verifiers.base import TargetLaws, Verifier, check_law, walk


class Coupled(Verifier):
    """Lossless and seed-exact for every tree that depends on the Gumbel noise at most."""

    name: ClassVar[str] = "coupled"
    lossless: ClassVar[bool] = True
    accepts: ClassVar[frozenset[LawKind | None]] = frozenset(
        {None, "iid", "paths", "without_replacement", "top_and_one", "factorised"}
    )
    follows_noise: ClassVar[bool] = True

    def verify(self, draft: TokenTree, target: TargetLaws, randomness: Randomness) -> Verdict:
        check_law(self, draft)
        return walk(
            draft,
            lambda node, depth: target.winner(node, target.position + depth, randomness),
        )
