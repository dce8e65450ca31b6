"""Block verification (Sun et al. 2024, arXiv:2403.10444): accept a chain as a whole.

Token rejection forgets, after each token, by how much the target liked what came before. Block
verification carries it along as a weight in [0, 1], so a prefix that the target finds likelier
than the drafter did makes up for a token that it finds less likely. The mass accepted through a
prefix u is min(w(parent) p, Q(u)), with Q(u) the draft's joint probability: the most that any rule
can accept of a single chain, and never less than token rejection accepts.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

import numpy as np

from paceline.errors import IncompatibleDraft
from paceline.law import residual
from paceline.randomness import Draw, Purpose, Randomness
from paceline.types import ROOT, Law, LawKind, TokenTree, Verdict
from paceline.verifiers.base import (
    Shape,
    TargetLaws,
    Verifier,
    check_chain,
    check_law,
    drawn_mass,
    row,
)


class Block(Verifier):
    """Lossless for chains drawn from the rows of their law."""

    name: ClassVar[str] = "block"
    lossless: ClassVar[bool] = True
    accepts: ClassVar[frozenset[LawKind | None]] = frozenset({"iid", "paths", "factorised"})
    shape: ClassVar[Shape] = "chain"

    def verify(self, draft: TokenTree, target: TargetLaws, randomness: Randomness) -> Verdict:
        """Accept the longest prefix whose coin says so."""
        check_law(self, draft)
        check_chain(self, draft)
        if draft.law is not None and len(draft.law.paths) > 1:
            raise IncompatibleDraft(
                f"verifier '{self.name}' takes a single path, but this draft drew "
                f"{len(draft.law.paths)}; use verifier 'multipath-block'"
            )
        path = range(len(draft))
        rows = [row(self, draft, node - 1) for node in path]
        for node, q in enumerate(rows):
            drawn_mass(self, q, draft, node)  # for its check
        return verify_path(draft, path, rows, target, randomness)


def verify_path(
    draft: TokenTree,
    path: Sequence[int],
    rows: Sequence[Law],
    target: TargetLaws,
    randomness: Randomness,
) -> Verdict:
    """Block verification of one path of a draft.

    Every depth has a coin of its own, and the deepest one that comes up decides. So they are
    tossed from the deepest upwards, and those above the first success need no toss.

    Args:
        draft: the draft.
        path: nodes from a child of the root downwards.
        rows: per node of `path`, the law that its token was drawn from.
        target: the target's laws.
        randomness: all draws.
    """
    parents = (ROOT, *path)
    weights = [1.0]
    for node, parent, q in zip(path, parents, rows, strict=False):
        token = int(draft.tokens[node])
        weights.append(min(1.0, weights[-1] * target.law(parent).prob(token) / q.prob(token)))
        if weights[-1] == 0:
            break  # the target cannot produce this prefix, nor a longer one
    root = target.position - 1
    reached = len(weights) - 1
    while reached:
        accept = weights[reached]
        if reached < len(path):
            accept = chance(target.law(parents[reached]), rows[reached], accept)
        draw = Draw(target.position + reached - 1, Purpose.ACCEPT, root=root)
        if accept > 0 and randomness.bernoulli(accept, draw):
            break
        reached -= 1
    law = target.law(parents[reached])
    position = target.position + reached
    if reached == len(path):
        draw = Draw(position, Purpose.TARGET)
    else:
        law = residual(law, rows[reached], weights[reached])
        draw = Draw(position, Purpose.RESIDUAL, root=root)
    return Verdict(tuple(path[:reached]), law.token(randomness.choice(law.probs, draw)))


def chance(p: Law, q: Law, weight: float) -> float:
    """Chance that a prefix of `weight` stands though its continuation was not accepted.

    Where both terms vanish the weight is one and p equals q: nothing is left to correct.
    """
    rest = weight * p.probs
    rest -= q.at(p.ids)
    # Not a dot product: a threaded one waits for cores on which the runtime still spins.
    left = float(np.maximum(rest, 0.0, out=rest).sum())
    total = left + (1 - weight)
    return left / total if total > 0 else 1.0
