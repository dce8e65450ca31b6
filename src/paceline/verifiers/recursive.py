"""Recursive rejection with replacement (SpecInfer: Miao et al. 2023, arXiv:2305.09781):
children are independent draws from q, tried in turn by token rejection against what earlier
rejections left of p. What is left after the last is the distribution of the correction.
"""

from __future__ import annotations

from typing import ClassVar

from paceline.core.types import Distribution, SamplingScheme
from paceline.sampling.distributions import residual, without
from paceline.verifiers.base import drawn_mass
from paceline.verifiers.multi_draft import MultiDraft, Siblings


class Recursive(MultiDraft):
    """Lossless for trees whose siblings were drawn independently."""

    name: ClassVar[str] = "recursive"
    requires = "siblings drawn independently (iid trees, merged paths)"
    paper = "SpecInfer, Miao et al. 2023, arXiv:2305.09781"
    lossless: ClassVar[bool] = True
    accepts: ClassVar[frozenset[SamplingScheme | None]] = frozenset({"iid", "paths"})

    def _decide(self, at: Siblings) -> int | Distribution:
        p: Distribution = at.p
        left: Distribution | None = at.q
        for sibling, (child, token) in enumerate(zip(at.children, at.tokens, strict=True)):
            if left is None:
                break
            mass = drawn_mass(self, left, at.draft, child)
            if at.coin(min(1.0, p.prob(token) / mass), sibling):
                return child
            p, left = residual(p, left), self._remaining(left, token)
        return p

    def _remaining(self, q: Distribution, token: int) -> Distribution | None:
        # The distribution of the next sibling after `token`; None if there cannot be one.
        return q


class RecursiveDistinct(Recursive):
    """Lossless for trees whose siblings were drawn without replacement, in node order."""

    name: ClassVar[str] = "recursive-distinct"
    requires = "siblings drawn without replacement"
    paper = "RSD, Jeon et al. 2024, arXiv:2402.14160; Sequoia, Chen et al. 2024, arXiv:2402.12374"
    accepts: ClassVar[frozenset[SamplingScheme | None]] = frozenset({"without_replacement"})

    def _remaining(self, q: Distribution, token: int) -> Distribution | None:
        return without(q, token)
