"""Sample-and-match verification: draw the target's token at each node and follow it while drafted.
Exact for every tree that does not depend on those draws; needs no draft distribution. Acceptance
probability at a node is the target's mass on its children.
"""

from __future__ import annotations

from typing import ClassVar

from paceline.randomness import Draw, Purpose, Randomness
from paceline.types import LawKind, TokenTree, Verdict
from paceline.verifiers.base import TargetLaws, Verifier, check_law, walk


class SampleMatch(Verifier):
    """Lossless for every tree built independently of the target's draws, at any temperature."""

    name: ClassVar[str] = "sample-match"
    lossless: ClassVar[bool] = True
    accepts: ClassVar[frozenset[LawKind | None]] = frozenset(
        {None, "iid", "paths", "without_replacement", "top_and_one", "factorised"}
    )

    def verify(self, draft: TokenTree, target: TargetLaws, randomness: Randomness) -> Verdict:
        # By inversion, keyed by position: the same seed draws the same at every position.
        check_law(self, draft)

        def pick(node: int, depth: int) -> int:
            law = target.law(node)
            draw = Draw(target.position + depth, Purpose.TARGET)
            return law.token(randomness.choice(law.probs, draw))

        return walk(draft, pick)
