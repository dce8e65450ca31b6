"""Base of relaxed acceptance rules: a coupled walk along the target's own tokens that may accept
single mismatches. A rule that accepts none is plain decoding with the same seed, token by token,
at any temperature.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence
from functools import cached_property
from typing import ClassVar

import numpy as np

from paceline.core import tree as trees
from paceline.core.types import Distribution, SamplingScheme, TokenTree, Verdict
from paceline.sampling.distributions import gumbel_max
from paceline.sampling.randomness import Randomness
from paceline.verifiers.base import ANY, TargetDistributions, Verifier, check_sampling, walk

# Added to probabilities inside the logarithm of an entropy, as in Medusa's code.
_FLOOR = 1e-5


def entropy(distribution: Distribution) -> float:
    """Return -sum p log p in nats, at most the logarithm of the vocabulary's size."""
    terms = np.log(distribution.probs + _FLOOR)
    terms *= distribution.probs  # not a dot product: see `block.chance`
    return -float(terms.sum())


class Round:
    """Draft under verification, with the target's own token at each of its nodes."""

    def __init__(
        self, draft: TokenTree, target: TargetDistributions, randomness: Randomness
    ) -> None:
        self.draft = draft
        self.target = target
        self.randomness = randomness
        self._own: dict[int, int] = {}
        self._entropies: dict[int, float] = {}

    @cached_property
    def _below(self) -> dict[int, list[int]]:
        return trees.children(self.draft)

    def children(self, node: int) -> Sequence[int]:
        """Return nodes under `node`, in node order."""
        return self._below.get(node, ())

    def own(self, node: int, depth: int) -> int:
        """Return the token that plain decoding emits after `node`, at `depth` (root: 0)."""
        if node not in self._own:
            position = self.target.position + depth
            self._own[node] = gumbel_max(self.target.distribution(node), position, self.randomness)
        return self._own[node]

    def entropy(self, node: int) -> float:
        """Return the entropy of the target's soft distribution after `node`, in nats."""
        if node not in self._entropies:
            self._entropies[node] = entropy(self.target.soft(node))
        return self._entropies[node]

    def match(self, node: int, depth: int) -> int | None:
        """Return the child of `node` that holds the target's own token, if one does."""
        own = self.own(node, depth)
        same = (child for child in self.children(node) if self.draft.tokens[child] == own)
        return next(same, None)


class RelaxedAcceptance(Verifier):
    """Accept the target's own tokens, and mismatches that `relaxes` accepts."""

    lossless: ClassVar[bool] = False
    accepts: ClassVar[frozenset[SamplingScheme | None]] = ANY
    gumbel_coupled: ClassVar[bool] = True

    @abstractmethod
    def relaxes(self, step: Round, node: int, child: int, depth: int) -> bool:
        """Return whether mismatch `child` of `node` (at `depth`) is accepted.

        Called only where the target's own token is not drafted.
        """

    def verify(
        self, draft: TokenTree, target: TargetDistributions, randomness: Randomness
    ) -> Verdict:
        # Of several accepted mismatches the most likely is followed.
        check_sampling(self, draft)
        step = Round(draft, target, randomness)

        def pick(node: int, depth: int) -> int:
            own = step.own(node, depth)
            if step.match(node, depth) is not None:
                return own
            relaxed = [c for c in step.children(node) if self.relaxes(step, node, c, depth)]
            if not relaxed:
                return own
            distribution = target.soft(node)
            return max((int(draft.tokens[child]) for child in relaxed), key=distribution.prob)

        return walk(draft, pick)
