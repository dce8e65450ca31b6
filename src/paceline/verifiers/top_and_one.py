"""Optimal verification of greedy draft sampling (Hu et al. 2025, "Towards Optimal Multi-draft
Speculative Decoding", arXiv:2502.18779). All children but the last are the most likely tokens of q,
the last is drawn from the rest q'. Acceptance is p's mass on the most likely, plus min(p, q') over
all others, which is optimal for such drafts.
"""

from __future__ import annotations

from typing import ClassVar

from paceline.core.types import Distribution, SamplingScheme
from paceline.errors import IncompatibleDraft
from paceline.sampling.distributions import residual, without
from paceline.verifiers.base import drawn_mass
from paceline.verifiers.multi_draft import MultiDraft, Siblings


class TopAndOne(MultiDraft):
    """Lossless for trees of most likely tokens with one drawn child per node, the last."""

    name: ClassVar[str] = "top-and-one"
    requires = "the most probable children, and one drawn from the rest"
    paper = "Hu et al. 2025, arXiv:2502.18779"
    lossless: ClassVar[bool] = True
    accepts: ClassVar[frozenset[SamplingScheme | None]] = frozenset({"top_and_one"})

    def _decide(self, at: Siblings) -> int | Distribution:
        *argmax, drawn = at.children
        rest = at.q
        for child, token in zip(argmax, at.tokens[:-1], strict=True):
            drawn_mass(self, rest, at.draft, child)
            left = without(rest, token)
            if left is None:
                raise IncompatibleDraft(
                    f"verifier '{self.name}': the siblings of node {drawn} leave nothing of their "
                    "distribution to draw it from; the drafter must report the row it drew from"
                )
            rest = left
        mass = drawn_mass(self, rest, at.draft, drawn)
        accepted = at.coin(min(1.0, at.p.prob(at.tokens[-1]) / mass), 0)
        return drawn if accepted else residual(at.p, rest)
