"""Block verification (Sun et al. 2024, arXiv:2403.10444): accept or reject a chain as a whole. The
mass accepted through a prefix u is min(w(parent) p, Q(u)), Q(u) the draft's joint probability:
optimal for a single chain, never less than token rejection.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

import numpy as np

from paceline.core.types import ROOT, Distribution, SamplingScheme, TokenTree, Verdict
from paceline.errors import IncompatibleDraft
from paceline.sampling.distributions import residual
from paceline.sampling.randomness import Draw, Purpose, Randomness
from paceline.verifiers.base import (
    Shape,
    TargetDistributions,
    Verifier,
    check_chain,
    check_sampling,
    drawn_mass,
    row,
)


class Block(Verifier):
    """Lossless for chains drawn from the rows of their distribution."""

    name: ClassVar[str] = "block"
    requires = "chains drawn from a draft model"
    paper = "Sun et al. 2024, arXiv:2403.10444"
    lossless: ClassVar[bool] = True
    accepts: ClassVar[frozenset[SamplingScheme | None]] = frozenset({"iid", "paths", "factorised"})
    shape: ClassVar[Shape] = "chain"

    def verify(
        self, draft: TokenTree, target: TargetDistributions, randomness: Randomness
    ) -> Verdict:
        check_sampling(self, draft)
        check_chain(self, draft)
        if draft.sampling is not None and len(draft.sampling.paths) > 1:
            raise IncompatibleDraft(
                f"verifier '{self.name}' takes a single path, but this draft drew "
                f"{len(draft.sampling.paths)}; use verifier 'multipath-block'"
            )
        path = range(len(draft))
        rows = [row(self, draft, node - 1) for node in path]
        for node, q in enumerate(rows):
            drawn_mass(self, q, draft, node)  # for its check
        return verify_path(draft, path, rows, target, randomness)


def verify_path(
    draft: TokenTree,
    path: Sequence[int],
    rows: Sequence[Distribution],
    target: TargetDistributions,
    randomness: Randomness,
) -> Verdict:
    """Verify one path of a draft by block verification; `rows` are the distributions drawn from.

    Each depth has a coin, and the deepest success decides: coins are tossed from there upwards.
    """
    parents = (ROOT, *path)
    weights = [1.0]
    for node, parent, q in zip(path, parents, rows, strict=False):
        token = int(draft.tokens[node])
        weights.append(
            min(1.0, weights[-1] * target.distribution(parent).prob(token) / q.prob(token))
        )
        if weights[-1] == 0:
            break  # the target cannot produce this prefix, nor a longer one
    root = target.position - 1
    reached = len(weights) - 1
    while reached:
        accept = weights[reached]
        if reached < len(path):
            accept = chance(target.distribution(parents[reached]), rows[reached], accept)
        draw = Draw(target.position + reached - 1, Purpose.ACCEPT, root=root)
        if accept > 0 and randomness.bernoulli(accept, draw):
            break
        reached -= 1
    distribution = target.distribution(parents[reached])
    position = target.position + reached
    if reached == len(path):
        draw = Draw(position, Purpose.TARGET)
    else:
        distribution = residual(distribution, rows[reached], weights[reached])
        draw = Draw(position, Purpose.RESIDUAL, root=root)
    return Verdict(
        tuple(path[:reached]), distribution.token(randomness.choice(distribution.probs, draw))
    )


def chance(p: Distribution, q: Distribution, weight: float) -> float:
    """Return the probability that a prefix of `weight` is accepted, its continuation not."""
    rest = weight * p.probs
    rest -= q.at(p.ids)
    # Not a dot product: a threaded one waits for cores on which the runtime still spins.
    left = float(np.maximum(rest, 0.0, out=rest).sum())
    total = left + (1 - weight)
    return left / total if total > 0 else 1.0
