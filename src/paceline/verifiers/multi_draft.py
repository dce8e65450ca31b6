"""Base of multi-draft rules that try several drawn children of a node in the order of the draws."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence
from itertools import pairwise
from typing import NamedTuple

from paceline.core import tree as trees
from paceline.core.types import ROOT, Distribution, TokenTree, Verdict
from paceline.errors import IncompatibleDraft
from paceline.sampling.randomness import Draw, Purpose, Randomness
from paceline.verifiers.base import TargetDistributions, Verifier, check_sampling, row


class Siblings(NamedTuple):
    """Children of a node, in the order drawn, one entry per draw.

    Attributes:
        p: the target's distribution at their parent.
        q: the draft's.
        position: of their tokens.
        root: position of the draft's root.
    """

    draft: TokenTree
    children: Sequence[int]
    p: Distribution
    q: Distribution
    position: int
    root: int
    randomness: Randomness

    @property
    def tokens(self) -> list[int]:
        return [int(self.draft.tokens[child]) for child in self.children]

    def coin(self, probability: float, sibling: int) -> bool:
        """Return whether the sibling at a place is accepted, which has that probability."""
        draw = Draw(self.position, Purpose.ACCEPT, sibling, self.root)
        return self.randomness.bernoulli(probability, draw)


class MultiDraft(Verifier):
    """Descend the tree, deciding at each node the accepted child or the correction."""

    @abstractmethod
    def _decide(self, at: Siblings) -> int | Distribution:
        """Return the accepted child, or the distribution of the token to emit instead.

        Raises IncompatibleDraft: not drawn from `q`.
        """

    def verify(
        self, draft: TokenTree, target: TargetDistributions, randomness: Randomness
    ) -> Verdict:
        # A corrected token that happens to be drafted is a child like any other: its own
        # children were drawn from their own rows, whatever led there.
        check_sampling(self, draft)
        below = drawn_children(self, draft)
        root = target.position - 1
        path: list[int] = []
        node = ROOT
        while children := below.get(node):
            position, p = target.position + len(path), target.distribution(node)
            q = row(self, draft, node)
            at = Siblings(draft, children, p, q, position, root, randomness)
            decided = self._decide(at)
            if isinstance(decided, Distribution):
                draw = Draw(position, Purpose.RESIDUAL, root=root)
                token = decided.token(randomness.choice(decided.probs, draw))
                if token not in at.tokens:
                    return Verdict(tuple(path), token)
                decided = children[at.tokens.index(token)]
            path.append(decided)
            node = decided
        distribution = target.distribution(node)
        draw = Draw(target.position + len(path), Purpose.TARGET)
        return Verdict(tuple(path), distribution.token(randomness.choice(distribution.probs, draw)))


def drawn_children(verifier: Verifier, draft: TokenTree) -> dict[int, tuple[int, ...]]:
    """Return each node's children in the order drawn. IncompatibleDraft: the tree was pruned."""
    distribution = draft.sampling
    nodes = trees.children(draft)
    if distribution is None:
        return {}
    drawn: dict[int, list[int]] = {}
    if distribution.kind == "paths":
        for path in distribution.paths:
            for parent, node in pairwise((ROOT, *path)):
                drawn.setdefault(parent, []).append(node)
    else:
        drawn = nodes | {parent: list(order) for parent, order in distribution.draws.items()}
    for parent in nodes.keys() | drawn.keys() | distribution.rows.keys():
        if not nodes.get(parent) or set(drawn.get(parent, ())) != set(nodes[parent]):
            raise IncompatibleDraft(
                f"verifier '{verifier.name}': the children of {trees.node_name(parent)} are not "
                "those that were drawn; a sampled draft must be verified as it was drawn"
            )
    return {parent: tuple(order) for parent, order in drawn.items()}
