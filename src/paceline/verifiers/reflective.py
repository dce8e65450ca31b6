"""Reflective verification: a second look at the draft, in the same pass. Lossy.

Behind a path of the draft the target also sees a reflection prompt and a copy of that path. The
copy's rows say what the target would write after having read and questioned the draft; the law at
a node is then the normalised p^(1 - alpha) r^alpha, p being the ordinary law and r the reflective
one (a mean of logits), and the draft is verified under it token by token. A law that was truncated
(top-p, bans) keeps its support. The prompt's wording, alpha and the mask are not published; these
are ours. A small model hardly reflects: what is checked here is the plumbing.

A tree has one reflected path, its deepest (the first of several); elsewhere the law is p. The
forward grows by the prompt and that path, and must fit the context.

Lossless limit: alpha = 0 is coupled verification, token by token plain decoding.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import ClassVar, Self

import numpy as np

from paceline import tree as trees
from paceline.law import AGREE, gumbel_max, one_hot
from paceline.options import arguments, require
from paceline.randomness import Randomness
from paceline.types import ROOT, IntArray, Law, LawKind, TokenTree, Verdict
from paceline.verifiers.base import TargetLaws, Verifier, check_law, walk
from paceline.verifiers.context import VerifierContext

PROMPT = "\nReading this again and correcting any mistake:"
"""What stands between the draft and its copy unless the caller gives another prompt."""


class Reflective(Verifier):
    """Takes drafts of every kind, chains and trees; how they were drawn plays no part."""

    name: ClassVar[str] = "reflective"
    lossless: ClassVar[bool] = False
    accepts: ClassVar[frozenset[LawKind | None]] = frozenset(
        {None, "iid", "paths", "without_replacement", "top_and_one", "factorised"}
    )

    def __init__(self, alpha: float = 0.3, prompt: Sequence[int] = ()) -> None:
        """Set the weight and the prompt.

        Args:
            alpha: weight of the reflective law, in [0, 1].
            prompt: token ids between the draft and its copy; `create` encodes `PROMPT`.

        Raises:
            InvalidOption: the weight is out of range.
        """
        require(0 <= alpha <= 1, "alpha", alpha, "in [0, 1]")
        self.alpha = alpha
        self.prompt: IntArray = np.asarray(prompt, dtype=np.int64)

    @classmethod
    def create(cls, context: VerifierContext) -> Self:
        """A verifier that reflects with `PROMPT`, in the target's own tokens."""
        return cls(prompt=context.encode(PROMPT), **arguments(cls, "verifier", context.options))

    def extend(self, draft: TokenTree) -> TokenTree:
        """The prompt and a copy of the deepest path, as one chain behind that path."""
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

    def verify(self, draft: TokenTree, target: TargetLaws, randomness: Randomness) -> Verdict:
        """Verify the nodes before those that `extend` added."""
        check_law(self, draft)
        reflected = self._reflected(draft)

        def pick(node: int, depth: int) -> int:
            law = target.law(node)
            if node in reflected and self.alpha > 0:
                certain = len(law.probs) == 1
                look = target.soft if certain else target.law
                law = _fuse(look(node), look(reflected[node]), self.alpha)
                if certain:
                    law = one_hot(law.argmax(), law.size)
            return gumbel_max(law, target.position + depth, randomness)

        own = len(draft) - (len(self.prompt) + len(reflected) - 1 if reflected else 0)
        return walk(replace(draft, tokens=draft.tokens[:own], parents=draft.parents[:own]), pick)

    def _reflected(self, draft: TokenTree) -> dict[int, int]:
        """From each node of the reflected path (`ROOT` first) to the row of its second look.

        The added chain hangs on the deepest path of what it extends, so it is the end of the
        deepest path now: as long again, after the prompt.
        """
        if not len(draft):
            return {}
        whole = _deepest(draft)
        depth = (len(whole) - len(self.prompt)) // 2
        first = len(whole) - depth - 1  # the node before the copy
        return dict(zip((ROOT, *whole[:depth]), whole[first:], strict=True))


def _deepest(draft: TokenTree) -> tuple[int, ...]:
    """The longest path, the first of several."""
    return trees.path_to(draft, int(trees.depths(draft).argmax()))


def _fuse(p: Law, r: Law, alpha: float) -> Law:
    """The normalised p^(1 - alpha) r^alpha; p where nothing is left of it."""
    weights = np.where(p.probs > 0, p.probs ** (1 - alpha) * r.at(p.ids) ** alpha, 0.0)
    mass = weights.sum()
    return Law(weights / mass, p.ids, p.size) if mass > AGREE else p
