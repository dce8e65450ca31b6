"""What rules share that try several drawn children of a node: the walk, and the order of draws."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Sequence
from itertools import pairwise

from paceline import tree as trees
from paceline.errors import IncompatibleDraft
from paceline.randomness import Draw, Purpose, Randomness
from paceline.types import ROOT, Law, TokenTree, Verdict
from paceline.verifiers.base import TargetLaws, Verifier, check_law, row

Coin = Callable[[float, int], bool]
"""From the probability of accepting and the place among the siblings to the outcome."""


class MultiDraft(Verifier):
    """Goes down the tree, deciding at each node which child stands or what law corrects."""

    @abstractmethod
    def _decide(
        self, draft: TokenTree, children: Sequence[int], p: Law, q: Law, coin: Coin
    ) -> int | Law:
        """The accepted child, or the law of the token to emit instead.

        Args:
            draft: the draft.
            children: nodes in the order drawn, one entry per draw.
            p: the target's law at their parent.
            q: the law that they were drawn from.
            coin: decides whether a child stands.

        Raises:
            IncompatibleDraft: a child cannot have been drawn from `q`.
        """

    def verify(self, draft: TokenTree, target: TargetLaws, randomness: Randomness) -> Verdict:
        """Decide node by node until no child stands or none was drawn.

        A corrected token that happens to be drafted is a child like any other: what lies below it
        was drawn from its own rows, whatever led there.
        """
        check_law(self, draft)
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

            decided = self._decide(draft, children, target.law(node), row(self, draft, node), coin)
            if isinstance(decided, Law):
                draw = Draw(position, Purpose.RESIDUAL, root=root)
                token = decided.token(randomness.choice(decided.probs, draw))
                same = [child for child in children if draft.tokens[child] == token]
                if not same:
                    return Verdict(tuple(path), token)
                decided = same[0]
            path.append(decided)
            node = decided
        law = target.law(node)
        draw = Draw(target.position + len(path), Purpose.TARGET)
        return Verdict(tuple(path), law.token(randomness.choice(law.probs, draw)))


def drawn_children(verifier: Verifier, draft: TokenTree) -> dict[int, tuple[int, ...]]:
    """Children of each node in the order they were drawn, one entry per draw.

    Raises:
        IncompatibleDraft: the draws do not match the tree, as when it was pruned afterwards.
    """
    law = draft.law
    nodes = trees.children(draft)
    if law is None:
        return {}
    drawn: dict[int, list[int]] = {}
    if law.kind == "paths":
        for path in law.paths:
            for parent, node in pairwise((ROOT, *path)):
                drawn.setdefault(parent, []).append(node)
    else:
        drawn = nodes | {parent: list(order) for parent, order in law.draws.items()}
    for parent in nodes.keys() | drawn.keys() | law.rows.keys():
        if not nodes.get(parent) or set(drawn.get(parent, ())) != set(nodes[parent]):
            raise IncompatibleDraft(
                f"verifier '{verifier.name}': the children of {trees.node_name(parent)} are not "
                "those that were drawn; a sampled draft must be verified as it was drawn"
            )
    return {parent: tuple(order) for parent, order in drawn.items()}
