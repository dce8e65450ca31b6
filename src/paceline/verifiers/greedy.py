"""Greedy verification: accept while the draft holds the target's argmax."""

from __future__ import annotations

from typing import ClassVar

from paceline.randomness import Randomness
from paceline.types import LawKind, TokenTree, Verdict
from paceline.verifiers.base import TargetLaws, Verifier, check_law, walk


class Greedy(Verifier):
    """Lossless for greedy requests; the engine refuses it at a temperature above 0."""

    name: ClassVar[str] = "greedy"
    lossless: ClassVar[bool] = True
    accepts: ClassVar[frozenset[LawKind | None]] = frozenset(
        {None, "iid", "paths", "without_replacement", "top_and_one", "factorised"}
    )
    greedy_only: ClassVar[bool] = True

    def verify(self, draft: TokenTree, target: TargetLaws, randomness: Randomness) -> Verdict:
        check_law(self, draft)
        return walk(draft, lambda node, depth: target.law(node).argmax())
