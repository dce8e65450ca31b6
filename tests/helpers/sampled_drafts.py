"""Shared by tests of verifiers: acceptance by enumeration, and hand-made drafts and laws."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from paceline.core.types import Budget, Distribution, DraftSampling, ProbArray, TokenTree, Verdict
from paceline.proof.cases import grown
from paceline.proof.oracle import enumerate_distribution
from paceline.proof.tabular import DistributionOf, TabularDistributions
from paceline.sampling.distributions import from_dense
from paceline.sampling.gumbel import GumbelNoise
from paceline.sampling.randomness import Draw, Randomness
from paceline.trees.base import TreeExpansion
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

    def noise(self, draw: Draw) -> GumbelNoise:
        return GumbelNoise(self._generator.bytes(16))


def constant(*probs: float) -> DistributionOf:
    """The same dense law in every context."""
    distribution = from_dense(np.array(probs))
    return lambda context: distribution


def tree(tokens: list[int], parents: list[int], distribution: DraftSampling | None) -> TokenTree:
    """A draft made by hand."""
    return TokenTree(np.array(tokens, np.int64), np.array(parents, np.int64), distribution)


def accepted(
    verifier: Verifier, growth: TreeExpansion, p: DistributionOf, q: DistributionOf, budget: Budget
) -> dict[int, float]:
    """Exact law of the number of drafted tokens that one round accepts."""

    def run(randomness: Randomness) -> tuple[int, ...]:
        draft = grown(growth, q)((0,), randomness, budget)
        return (len(verifier.verify(draft, TabularDistributions(p, (0,), draft), randomness).path),)

    return {length: mass for (length,), mass in enumerate_distribution(run).items()}


def mean_accepted(
    verifier: Verifier, growth: TreeExpansion, p: DistributionOf, q: DistributionOf, budget: Budget
) -> float:
    """Expected number of drafted tokens that one round accepts."""
    distribution = accepted(verifier, growth, p, q, budget)
    return sum(length * mass for length, mass in distribution.items())


def verdict_of(
    verifier: Verifier, draft: TokenTree, p: DistributionOf, randomness: Randomness
) -> Verdict:
    """One verification after the context (0,)."""
    return verifier.verify(draft, TabularDistributions(p, (0,), draft), randomness)


def best_acceptance(p: Distribution, inside: Callable[[list[int]], float]) -> float:
    """The most that any lossless rule accepts of one node's drafts.

    1 + min over sets H of p(H) - Q(H), where `inside` gives Q(H), the chance that all drafts lie in
    H (Hu et al. 2025, arXiv:2502.18779); over all subsets, so for small vocabularies.
    """
    subsets = range(2**p.size)
    sets = [[token for token in range(p.size) if subset >> token & 1] for subset in subsets]
    return 1 + min(sum(map(p.prob, chosen)) - inside(chosen) for chosen in sets)
