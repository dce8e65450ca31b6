"""Stochastic beam search: RSD-S (Jeon et al. 2024, arXiv:2402.14160).

The sampler is that of Kool et al. 2019, arXiv:1903.06059.

Every candidate path has a log-probability phi and a perturbed one G. The children of a path get
Gumbel noise around their phi, conditioned on their maximum being the G of the path, and each level
keeps the candidates with the largest G of the whole beam: a sample without replacement of paths.
"""

from __future__ import annotations

from typing import ClassVar, NamedTuple

import numpy as np

from paceline.errors import InvalidOption
from paceline.growth.base import Growing, Growth, Sapling
from paceline.growth.draws import race
from paceline.randomness import Randomness
from paceline.types import ROOT, Budget, Law, LawKind, ProbArray


class _Candidate(NamedTuple):
    parent: int
    token: int
    phi: float
    perturbed: float


class StochasticBeam(Growth):
    """The paths of a beam drawn without replacement.

    Whether a node gets one more child depends on perturbed values, which given its elder children
    say nothing of that child's token; so the children of a node, in node order, are draws without
    replacement.
    """

    name: ClassVar[str] = "stochastic-beam"
    kind: ClassVar[LawKind | None] = "without_replacement"

    def __init__(self, width: int) -> None:
        """Keep `width` nodes per level.

        Raises:
            InvalidOption: the width is below 1.
        """
        if width < 1:
            raise InvalidOption(f"growth 'stochastic-beam' needs a width of 1 or more, not {width}")
        self._width = width

    @property
    def chain(self) -> bool:
        """Whether the beam is one node wide."""
        return self._width == 1

    def grow(self, budget: Budget, randomness: Randomness, position: int) -> Growing:
        """Grow level by level, as deep as the budget goes; a last level may be narrower."""
        sapling = Sapling(budget, position)
        beam = [_Candidate(ROOT, ROOT, 0.0, 0.0)]
        nodes = [ROOT]
        for _ in range(budget.depth):
            keep = min(self._width, sapling.room)
            if not keep:
                break
            rows = yield from sapling.ask(nodes)
            found: list[_Candidate] = []
            for node, above, q in zip(nodes, beam, rows, strict=True):
                uniform = randomness.uniform(len(q.probs), sapling.names(node)())
                found += _children(node, above, q, uniform, keep)
            beam = sorted(found, key=lambda candidate: -candidate.perturbed)[:keep]
            nodes = [sapling.add(candidate.parent, candidate.token) for candidate in beam]
        return sapling.finish(self.kind)


def _children(
    node: int, above: _Candidate, q: Law, uniform: ProbArray, count: int
) -> list[_Candidate]:
    """The candidates below a node with the largest perturbed values, at most `count`."""
    best = race(q.probs, uniform, count)
    phi = above.phi + np.log(q.probs[best])
    free = phi - np.log(-np.log(uniform[best]))
    with np.errstate(divide="ignore"):  # at the maximum: log(1 - exp(0)) is minus infinity
        shifted = above.perturbed - free + np.log(-np.expm1(free - free.max()))
    perturbed = above.perturbed - np.maximum(shifted, 0.0) - np.log1p(np.exp(-np.abs(shifted)))
    return [
        _Candidate(node, q.token(index), *values)
        for index, *values in zip(best.tolist(), phi.tolist(), perturbed.tolist(), strict=True)
    ]
