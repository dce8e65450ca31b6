"""Greedy verification: accept while the draft holds the target's argmax."""

from __future__ import annotations

from typing import ClassVar

from paceline.core.types import SamplingScheme, TokenTree, Verdict
from paceline.sampling.randomness import Draw, Purpose, Randomness
from paceline.verifiers.base import ANY, TargetDistributions, Verifier, check_sampling, walk


class Greedy(Verifier):
    """Lossless for greedy requests; the engine refuses it at a temperature above 0."""

    name: ClassVar[str] = "greedy"
    guarantee = "lossless at temperature 0"
    requires = "temperature 0"
    paper = "Blockwise Parallel Decoding, Stern et al. 2018, arXiv:1811.03115"
    lossless: ClassVar[bool] = True
    accepts: ClassVar[frozenset[SamplingScheme | None]] = ANY
    greedy_only: ClassVar[bool] = True

    def verify(
        self, draft: TokenTree, target: TargetDistributions, randomness: Randomness
    ) -> Verdict:
        check_sampling(self, draft)
        return walk(draft, lambda node, depth: target.distribution(node).argmax())


class SampleMatch(Verifier):
    """Lossless for every tree built independently of the target's draws, at any temperature."""

    name: ClassVar[str] = "sample-match"
    requires = "any draft"
    paper = "SpecInfer, Miao et al. 2023, arXiv:2305.09781"
    lossless: ClassVar[bool] = True
    accepts: ClassVar[frozenset[SamplingScheme | None]] = ANY

    def verify(
        self, draft: TokenTree, target: TargetDistributions, randomness: Randomness
    ) -> Verdict:
        # By inversion, keyed by position: the same seed draws the same at every position.
        check_sampling(self, draft)

        def pick(node: int, depth: int) -> int:
            distribution = target.distribution(node)
            draw = Draw(target.position + depth, Purpose.TARGET)
            return distribution.token(randomness.choice(distribution.probs, draw))

        return walk(draft, pick)


class Coupled(Verifier):
    """Lossless and seed-exact for every tree that depends on the Gumbel noise at most."""

    name: ClassVar[str] = "coupled"
    guarantee = "lossless, seed-exact"
    requires = "any draft"
    paper = "Gumbel coupling, Daliri et al. 2025, arXiv:2408.07978"
    lossless: ClassVar[bool] = True
    accepts: ClassVar[frozenset[SamplingScheme | None]] = ANY
    gumbel_coupled: ClassVar[bool] = True

    def verify(
        self, draft: TokenTree, target: TargetDistributions, randomness: Randomness
    ) -> Verdict:
        check_sampling(self, draft)
        return walk(
            draft, lambda node, depth: target.sample(node, target.position + depth, randomness)
        )
