"""RSD-S: stochastic beam search (Jeon et al. 2024, arXiv:2402.14160; Kool 2019, arXiv:1903.06059).

Children get Gumbel-perturbed log-probabilities, conditioned on their maximum being the
parent's. Each level retains the largest: a sample of paths without replacement.
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
    """A beam of paths sampled without replacement.

    Given the elder siblings, whether a node gets a further child is independent of its token; so
    children are samples without replacement.
    """

    name: ClassVar[str] = "stochastic-beam"
    kind: ClassVar[LawKind | None] = "without_replacement"

    def __init__(self, width: int) -> None:
        """Set the nodes per level. Raises InvalidOption if `width` is below 1."""
        if width < 1:
            raise InvalidOption(f"growth 'stochastic-beam' needs a width of 1 or more, not {width}")
        self._width = width

    @property
    def chain(self) -> bool:
        return self._width == 1

    def grow(self, budget: Budget, randomness: Randomness, position: int) -> Growing:
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
    # Top children by perturbed value, at most `count`.
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
