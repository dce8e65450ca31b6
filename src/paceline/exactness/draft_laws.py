"""Drafting methods of the audit, over tables; the drafters are the shipped tree expansions."""

from __future__ import annotations

import operator
from collections.abc import Callable
from dataclasses import dataclass

from paceline import tree as trees
from paceline.drafters.base import Drafter
from paceline.drafters.cascade import Cascade, Level
from paceline.drafters.jacobi import Jacobi
from paceline.exactness.drafting import Propose, grown, likely_chain, random_tree, sampled_chain
from paceline.exactness.tabular import LawOf, LogitsOf, TabularModel, TabularTarget
from paceline.growth.base import Growth
from paceline.growth.branching import Branching
from paceline.growth.dynamic import Dynamic
from paceline.growth.expand_rerank import ExpandRerank
from paceline.growth.iid import Iid
from paceline.growth.paths import Paths
from paceline.growth.shared_noise import SharedNoise
from paceline.growth.static import Static
from paceline.growth.stochastic_beam import StochasticBeam
from paceline.growth.threshold import Threshold
from paceline.growth.top_and_one import TopAndOne
from paceline.randomness import Draw, Purpose, Randomness
from paceline.shapes.prune import confident
from paceline.shapes.published import MEDUSA
from paceline.types import Budget, DraftLaw, LawKind, TokenTree
from paceline.verifiers.base import Shape, Verifier

# Seed of the table at the bottom of the cascade.
_THIRD = 7

# Threshold of expansion and pruning: low enough for siblings and several levels.
_LEAST = 0.15


@dataclass(frozen=True, slots=True)
class Draftable:
    """One drafting method.

    Attributes:
        kind: declared kind of the draft distribution; None for deterministic drafts.
        nodes: node budget from width and depth.
        build: stateless drafter from a draft distribution, the vocabulary and a width.
        drafter: instead, for stateful drafters, which run in whole loops alone.
    """

    name: str
    kind: LawKind | None
    shape: Shape
    nodes: Callable[[int, int], int]
    build: Callable[[LawOf, int, int], Propose] | None = None
    drafter: Callable[[LogitsOf, int], Drafter] | None = None

    def fits(self, verifier: Verifier) -> bool:
        """Return whether `verifier` accepts such drafts."""
        shaped = self.shape == "chain" or verifier.shape == "tree"
        return shaped and self.kind in verifier.accepts

    def budget(self, width: int, depth: int) -> Budget:
        return Budget(self.nodes(width, depth), depth)


def factorised_chain(law: LawOf) -> Propose:
    """Build a drafter whose rows depend on committed tokens and depth, not on drafted tokens."""

    def propose(context: tuple[int, ...], randomness: Randomness, budget: Budget) -> TokenTree:
        root = len(context) - 1
        depth = min(budget.depth, budget.nodes)
        rows = {level - 1: law((*context, *[0] * level)) for level in range(depth)}
        tokens = [
            q.token(randomness.choice(q.probs, Draw(root + 2 + parent, Purpose.DRAFT, root=root)))
            for parent, q in rows.items()
        ]
        return trees.chain(tokens, "factorised", DraftLaw("factorised", rows) if rows else None)

    return propose


def pruned(propose: Propose) -> Propose:
    """Build a drafter that prunes unlikely nodes of another's drafts, which must not be drawn."""
    return lambda context, randomness, budget: confident(
        propose(context, randomness, budget), _LEAST
    )


# Nodes, by width and depth, of `width` chains.
_straight = operator.mul


def _full(width: int, depth: int) -> int:
    return sum(width**level for level in range(1, depth + 1))


def _grown(
    name: str, make: Callable[[int], Growth], nodes: Callable[[int, int], int] = _straight
) -> Draftable:
    kind = make(1).kind
    return Draftable(name, kind, "tree", nodes, lambda q, vocabulary, width: grown(make(width), q))


def _chain(name: str, kind: LawKind | None, build: Callable[[LawOf], Propose]) -> Draftable:
    return Draftable(name, kind, "chain", _straight, lambda q, vocabulary, width: build(q))


def _jacobi(logits: LogitsOf, vocabulary: int) -> Drafter:
    return Jacobi(vocabulary, report_law=True)


def _cascade(logits: LogitsOf, vocabulary: int) -> Drafter:
    # The draft model, with a third model as its drafter.
    third = TabularModel(vocabulary, 4, seed=_THIRD)
    levels = [TabularTarget(each, vocabulary) for each in (third.logits, logits)]
    return Cascade([Level(model) for model in levels], vocabulary, report_law=True)


DRAFT_LAWS: tuple[Draftable, ...] = (
    _chain("likely chain", None, likely_chain),
    Draftable("any tree", None, "tree", _full, lambda q, v, w: random_tree(v, 4 * w, w)),
    _grown("shared noise", lambda width: SharedNoise([width])),
    _grown("expand and rerank", ExpandRerank),
    _grown("static shape", lambda width: Static(MEDUSA)),
    Draftable(
        "pruned by confidence",
        None,
        "tree",
        _full,
        lambda q, v, w: pruned(grown(ExpandRerank(w), q)),
    ),
    _chain("iid chain", "iid", sampled_chain),
    _grown("iid star", lambda width: Iid([width, 1])),
    _grown("iid tree", lambda width: Iid([width]), _full),
    _chain("one path", "paths", lambda q: grown(Paths(1), q)),
    _grown("paths", Paths),
    _grown("paths cut short", Paths, lambda width, depth: max(1, width * depth - 1)),
    _grown("branching", lambda width: Branching([width]), _full),
    _grown("branching by noise", lambda width: Branching([width], noise=True), _full),
    _grown("dynamic", lambda width: Dynamic()),
    _grown("threshold", lambda width: Threshold(_LEAST)),
    _grown("stochastic beam", StochasticBeam),
    _grown("top and one", lambda width: TopAndOne([width]), _full),
    _chain("factorised chain", "factorised", factorised_chain),
    Draftable("jacobi window", "factorised", "chain", _straight, drafter=_jacobi),
    Draftable("cascade", "iid", "chain", _straight, drafter=_cascade),
)


def draft_law(name: str) -> Draftable:
    return next(each for each in DRAFT_LAWS if each.name == name)
