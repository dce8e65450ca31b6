"""Shared by tests of verifiers: acceptance by enumeration, and hand-made drafts and laws."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from paceline.exactness.drafting import grown
from paceline.exactness.oracle import enumerate_law
from paceline.exactness.tabular import LawOf, TabularLaws
from paceline.growth.base import Growth
from paceline.law import from_dense
from paceline.noise import TokenNoise
from paceline.randomness import Draw, Randomness
from paceline.types import Budget, DraftLaw, Law, ProbArray, TokenTree, Verdict
from paceline.verifiers.base import Verifier


class Sampled:
    """Draws from one stream of numbers, whatever their names: fast, for many runs."""

    def __init__(self, seed: int) -> None:
        self._generator = np.random.default_rng(seed)

    def choice(self, weights: ProbArray, draw: Draw) -> int:
        cumulative = np.cumsum(weights)
        point = self._generator.random() * cumulative[-1]
        return int(np.searchsorted(cumulative, point, side="right"))

    def bernoulli(self, probability: float, draw: Draw) -> bool:
        return bool(self._generator.random() < probability)

    def uniform(self, size: int, draw: Draw) -> ProbArray:
        return np.maximum(self._generator.random(size), 2.0**-54)

    def noise(self, draw: Draw) -> TokenNoise:
        return TokenNoise(self._generator.bytes(16))


def constant(*probs: float) -> LawOf:
    """The same dense law in every context."""
    law = from_dense(np.array(probs))
    return lambda context: law


def tree(tokens: list[int], parents: list[int], law: DraftLaw | None) -> TokenTree:
    """A draft made by hand."""
    return TokenTree(np.array(tokens, np.int64), np.array(parents, np.int64), law)


def accepted(
    verifier: Verifier, growth: Growth, p: LawOf, q: LawOf, budget: Budget
) -> dict[int, float]:
    """Exact law of the number of drafted tokens that one round accepts."""

    def run(randomness: Randomness) -> tuple[int, ...]:
        draft = grown(growth, q)((0,), randomness, budget)
        return (len(verifier.verify(draft, TabularLaws(p, (0,), draft), randomness).path),)

    return {length: mass for (length,), mass in enumerate_law(run).items()}


def mean_accepted(verifier: Verifier, growth: Growth, p: LawOf, q: LawOf, budget: Budget) -> float:
    """Expected number of drafted tokens that one round accepts."""
    law = accepted(verifier, growth, p, q, budget)
    return sum(length * mass for length, mass in law.items())


def verdict_of(verifier: Verifier, draft: TokenTree, p: LawOf, randomness: Randomness) -> Verdict:
    """One verification after the context (0,)."""
    return verifier.verify(draft, TabularLaws(p, (0,), draft), randomness)


def best_acceptance(p: Law, inside: Callable[[list[int]], float]) -> float:
    """The most that any lossless rule accepts of one node's drafts.

    1 + min over sets H of p(H) - Q(H), where `inside` gives Q(H), the chance that all drafts lie in
    H (Hu et al. 2025, arXiv:2502.18779); over all subsets, so for small vocabularies.
    """
    subsets = range(2**p.size)
    sets = [[token for token in range(p.size) if subset >> token & 1] for subset in subsets]
    return 1 + min(sum(map(p.prob, chosen)) - inside(chosen) for chosen in sets)
