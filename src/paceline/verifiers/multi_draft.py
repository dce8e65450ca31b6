"""Base of multi-draft rules that try several drawn children of a node in the order of the draws."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Sequence
from itertools import pairwise

from paceline.core import tree as trees
from paceline.core.types import ROOT, Distribution, TokenTree, Verdict
from paceline.errors import IncompatibleDraft
from paceline.sampling.randomness import Draw, Purpose, Randomness
from paceline.verifiers.base import TargetDistributions, Verifier, check_sampling, row

# From the acceptance probability and the place among the siblings to the outcome.
Coin = Callable[[float, int], bool]


class MultiDraft(Verifier):
    """Descend the tree, deciding at each node the accepted child or the correction."""

    @abstractmethod
    def _decide(
        self,
        draft: TokenTree,
        children: Sequence[int],
        p: Distribution,
        q: Distribution,
        coin: Coin,
    ) -> int | Distribution:
        """Return the accepted child, or the distribution of the token to emit instead.

        `children` are in the order drawn, one entry per draw; `p` and `q` are the target's and the
        draft's distribution at their parent. Raises IncompatibleDraft: not drawn from `q`.
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
            position = target.position + len(path)

            def coin(probability: float, sibling: int, position: int = position) -> bool:
                return randomness.bernoulli(
                    probability, Draw(position, Purpose.ACCEPT, sibling, root)
                )

            decided = self._decide(
                draft, children, target.distribution(node), row(self, draft, node), coin
            )
            if isinstance(decided, Distribution):
                draw = Draw(position, Purpose.RESIDUAL, root=root)
                token = decided.token(randomness.choice(decided.probs, draw))
                same = [child for child in children if draft.tokens[child] == token]
                if not same:
                    return Verdict(tuple(path), token)
                decided = same[0]
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
