"""Reflective verification, lossy: in the same pass the target sees a reflection prompt and a
copy of the draft's deepest path. Its distribution r there is mixed with p as p^(1 - alpha)
r^alpha, and the draft is verified under the mixture. Prompt, alpha and mask are ours; the
forward grows by prompt and path. Lossless limit: alpha = 0 is coupled verification.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import ClassVar, Self

import numpy as np

from paceline.core import tree as trees
from paceline.core.options import arguments, require
from paceline.core.types import ROOT, Distribution, IntArray, SamplingScheme, TokenTree, Verdict
from paceline.sampling.distributions import AGREE, gumbel_max, one_hot
from paceline.sampling.randomness import Randomness
from paceline.verifiers.base import (
    ANY,
    TargetDistributions,
    Verifier,
    VerifierContext,
    check_sampling,
    walk,
)

# Default text between the draft and its copy.
PROMPT = "\nReading this again and correcting any mistake:"


class Reflective(Verifier):
    """Accept drafts of every kind, chains and trees, however drawn."""

    name: ClassVar[str] = "reflective"
    guarantee = "lossy: fuses the distribution with that of a second look at the draft"
    requires = "any draft"
    paper = "after Reflective Verification, Wang et al. 2025, arXiv:2505.18629"
    proof = "paceline.methods.proof:REFLECTIVE"
    lossless: ClassVar[bool] = False
    accepts: ClassVar[frozenset[SamplingScheme | None]] = ANY

    def __init__(self, alpha: float = 0.3, prompt: Sequence[int] = ()) -> None:
        """Set the reflective weight, and the prompt as token ids; `create` encodes `PROMPT`.

        Raises:
            InvalidOption: the weight is out of [0, 1].
        """
        require(0 <= alpha <= 1, "alpha", alpha, "in [0, 1]")
        self.alpha = alpha
        self.prompt: IntArray = np.asarray(prompt, dtype=np.int64)

    @classmethod
    def create(cls, context: VerifierContext) -> Self:
        return cls(prompt=context.encode(PROMPT), **arguments(cls, "verifier", context.options))

    def extend(self, draft: TokenTree) -> TokenTree:
        if not len(draft):
            return draft
        path = _deepest(draft)
        more = np.concatenate([self.prompt, draft.tokens[list(path)]])
        parents = np.arange(len(draft) - 1, len(draft) - 1 + len(more))
        parents[0] = path[-1]
        return replace(
            draft,
            tokens=np.concatenate([draft.tokens, more]),
            parents=np.concatenate([draft.parents, parents]),
            scores=None,
        )

    def verify(
        self, draft: TokenTree, target: TargetDistributions, randomness: Randomness
    ) -> Verdict:
        # Only the draft's own nodes, not those that `extend` added.
        check_sampling(self, draft)
        reflected = self._reflected(draft)

        def pick(node: int, depth: int) -> int:
            distribution = target.distribution(node)
            if node in reflected and self.alpha > 0:
                certain = len(distribution.probs) == 1
                look = target.soft if certain else target.distribution
                distribution = _fuse(look(node), look(reflected[node]), self.alpha)
                if certain:
                    distribution = one_hot(distribution.argmax(), distribution.size)
            return gumbel_max(distribution, target.position + depth, randomness)

        own = len(draft) - (len(self.prompt) + len(reflected) - 1 if reflected else 0)
        return walk(replace(draft, tokens=draft.tokens[:own], parents=draft.parents[:own]), pick)

    def _reflected(self, draft: TokenTree) -> dict[int, int]:
        # From each node of the reflected path (`ROOT` first) to its row in the copy. The added
        # chain hangs on the deepest path, so it is the end of the deepest path now.
        if not len(draft):
            return {}
        whole = _deepest(draft)
        depth = (len(whole) - len(self.prompt)) // 2
        first = len(whole) - depth - 1  # the node before the copy
        return dict(zip((ROOT, *whole[:depth]), whole[first:], strict=True))


def _deepest(draft: TokenTree) -> tuple[int, ...]:
    return trees.path_to(draft, int(trees.depths(draft).argmax()))


def _fuse(p: Distribution, r: Distribution, alpha: float) -> Distribution:
    # p where nothing is left of the mixture.
    weights = np.where(p.probs > 0, p.probs ** (1 - alpha) * r.at(p.ids) ** alpha, 0.0)
    mass = weights.sum()
    return Distribution(weights / mass, p.ids, p.size) if mass > AGREE else p
