"""Tree merging: drafts of several drafters in one tree under one budget. A node's acceptance
probability is the hit rate of its set of proposers at their level of confidence. Published ways
are settings: Graft, and RASD (Quan et al. 2025, arXiv:2503.03434).
"""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from dataclasses import replace
from typing import ClassVar, Protocol, runtime_checkable

import numpy as np

from paceline.core import tree as trees
from paceline.core.expressions import Way
from paceline.core.options import require
from paceline.core.types import ROOT, Budget, TokenTree
from paceline.drafters.base import Drafter
from paceline.drafters.combine.base import CompositeDrafter, refuse_drawn
from paceline.native.library import address, calls
from paceline.policy.acceptance import HitRates
from paceline.policy.constants import MERGED_BELIEF, UNSCORED
from paceline.sampling.generation import Generation, VerifiedDraft
from paceline.trees.candidates import CandidateTree, Workspace
from paceline.trees.shapes import confident

# Confidence bins.
_LEVELS = 10

# The nodes, and per node the index of the first draft that has it.
Blended = tuple[CandidateTree, list[int]]


class Blender:
    """Acceptance probabilities of nodes by proposing drafters and confidence.

    Attributes:
        rates: hit rates by (set of proposers, confidence bin), given that no likelier token comes.
    """

    def __init__(self, sources: int) -> None:
        """Start from the prior that the drafters err independently."""
        levels = (np.arange(_LEVELS) + 0.5) / _LEVELS
        self.rates = HitRates(np.tile(levels, (1 << sources, 1)), MERGED_BELIEF)
        self._out = Workspace()

    def blend(self, drafts: Sequence[TokenTree], budget: Budget) -> Blended:
        """Return the most probable nodes of the union: `native/drafting/blend.hpp`."""
        numbers, scores = [len(draft) for draft in drafts], array("d")
        total = sum(numbers)
        for draft in drafts:
            numbers += draft.tokens.tolist()
            numbers += draft.parents.tolist()
            scores.extend(_scores(draft))
        given = array("i", numbers)
        rates, sources = self.rates.flat, array("i", bytes(4 * budget.nodes))
        out = self._out
        out.fit(budget.nodes, total)
        nodes = calls("grow_").blend(
            len(drafts),
            address(given),
            address(scores),
            budget.nodes,
            budget.depth,
            _LEVELS,
            address(rates),
            out.numbers,
            out.chances,
            address(sources),
        )
        if nodes < 0:
            raise MemoryError("no memory to blend drafts")
        return out.guess(nodes, self.rates), sources[:nodes].tolist()


def _scores(draft: TokenTree) -> list[float]:
    # Path probability of each node; drafts without scores get a constant conditional probability.
    scores: list[float] = [] if draft.scores is None else draft.scores.tolist()
    if scores:
        return scores
    for parent in draft.parents.tolist():
        scores.append(UNSCORED * (1.0 if parent == ROOT else scores[parent]))
    return scores


@runtime_checkable
class Retrieves(Protocol):
    """A drafter that finds what follows any token, drafted ones among them."""

    def after(self, root: int, budget: Budget) -> TokenTree: ...


class Merged(CompositeDrafter):
    """Merge several deterministic drafters into one."""

    name: ClassVar[str] = "merged"

    def __init__(
        self, parts: Sequence[Drafter], *, way: Way = "blend", floor: float = 0.3, top: int = 10
    ) -> None:
        """Merge drafters.

        Args:
            parts: the drafters; for "graft" and "fuse" the leading one first.
            way: "blend" takes the best nodes of all; "graft" keeps the first drafter's nodes
                down to `floor` and fills up with others', also with what they find behind the
                leaves that are kept, where they can; "fuse" takes all of the first drafter's
                nodes, and of others what begins with one of its `top` tokens under the root, in
                the order of its probability times the other's score, for up to half of the budget.
            floor: of a node's estimated acceptance, in [0, 1]; "graft" alone reads it.
            top: "fuse" alone reads it.

        Raises:
            InvalidOption: fewer than two parts or too many, or one that draws its drafts.
        """
        super().__init__(parts)
        refuse_drawn(parts, "merged")
        require(0 <= floor <= 1, "floor", floor, "in [0, 1]")
        require(top >= 1, "top", top, "1 or more")
        self._way = way
        self._top = top
        self._floor = floor
        self._names = [part.name for part in parts]
        self._blender = Blender(len(parts))
        self._guesses: dict[int, tuple[int, CandidateTree]] = {}

    def reset(self) -> None:
        super().reset()
        self._blender = Blender(len(self.parts))

    def propose(
        self, sequences: Sequence[Generation], budgets: Sequence[Budget]
    ) -> list[TokenTree]:
        first, *others = self.parts
        rest = [part.propose(sequences, budgets) for part in others]
        if self._way == "fuse" and rest:
            found = map(sum, zip(*(map(len, each) for each in rest), strict=True))
            mine = [
                replace(budget, nodes=budget.nodes - min(budget.nodes // 2, count))
                for budget, count in zip(budgets, found, strict=True)
            ]
        else:
            mine = list(budgets)
        drafts = zip(first.propose(sequences, mine), *rest, strict=True)
        if not any(budget.nodes and budget.depth for budget in budgets):
            return [CandidateTree().tree(self.name) for _ in drafts]
        if self._way != "blend":
            merge = self._graft if self._way == "graft" else self._fuse
            return [merge(each, budget) for each, budget in zip(drafts, budgets, strict=True)]
        out = []
        for sequence, budget, each in zip(sequences, budgets, drafts, strict=True):
            guess, sources = self._blender.blend(each, budget)
            self._guesses[sequence.id] = (len(sequence.tokens), guess)
            origins = tuple(map(self._names.__getitem__, sources))
            out.append(guess.tree(self.name, origins))
        return out

    def observe(self, step: Sequence[VerifiedDraft]) -> None:
        super().observe(step)
        for each in step:
            open_guess = self._guesses.pop(each.sequence.id, None)
            if open_guess is not None:
                begin, guess = open_guess
                guess.learn(each.sequence.tokens[begin:], self._blender.rates)

    def close(self, sequence: Generation) -> None:
        super().close(sequence)
        self._guesses.pop(sequence.id, None)

    def _graft(self, drafts: Sequence[TokenTree], budget: Budget) -> TokenTree:
        kept, others = confident(drafts[0], self._floor), [*drafts[1:]]
        free = budget.nodes - len(kept)
        for way in trees.leaf_paths(kept) if free > 0 else ():
            room, leaf = Budget(free, budget.depth - len(way)), int(kept.tokens[way[-1]])
            retrievers = (part for part in self.parts[1:] if isinstance(part, Retrieves))
            others += [_behind(kept, way, each.after(leaf, room)) for each in retrievers]
        union = _fill(kept, others, replace(budget, nodes=sum(map(len, [kept, *others]))))
        if union.scores is None:
            return trees.limit(union, budget.nodes, budget.depth)
        # A node scores no more than its parent, which comes before it.
        order = np.argsort(-union.scores[len(kept) :], kind="stable")[: max(free, 0)]
        chosen = np.append(np.arange(len(kept)), len(kept) + np.sort(order))
        return trees.limit(trees.take(union, chosen), budget.nodes, budget.depth)

    def _fuse(self, drafts: Sequence[TokenTree], budget: Budget) -> TokenTree:
        first, *others = drafts
        chances = _beginnings(first, self._top)
        branches: list[tuple[float, TokenTree]] = []
        for draft in others:
            parents, tokens = draft.parents.tolist(), draft.tokens.tolist()
            top = list(range(len(draft)))  # the node under the root that each hangs on
            for node, parent in enumerate(parents):
                top[node] = node if parent == ROOT else top[parent]
            for node, parent in enumerate(parents):
                if parent == ROOT and tokens[node] in chances:
                    score = 1.0 if draft.scores is None else float(draft.scores[node])
                    branch = trees.take(draft, np.flatnonzero(np.array(top) == node))
                    branches.append((chances[tokens[node]] * score, branch))
        branches.sort(key=lambda each: -each[0])
        return _fill(first, [branch for _, branch in branches], budget)


def _beginnings(first: TokenTree, top: int) -> dict[int, float]:
    # The most probable tokens under the root; of a drafter without distributions, its own.
    if first.first is not None:
        p = first.first
        best = np.argsort(-p.probs, kind="stable")[:top]
        return {p.token(int(index)): float(p.probs[index]) for index in best}
    nodes = np.flatnonzero(first.parents == ROOT).tolist()
    scores = np.ones(len(first)) if first.scores is None else first.scores
    return {int(first.tokens[node]): float(scores[node]) for node in nodes}


def _behind(tree: TokenTree, way: Sequence[int], found: TokenTree) -> TokenTree:
    # The way to a leaf, and what was found behind it.
    nodes, size = np.array(way), len(way)
    above, below = (np.array(_scores(each)) for each in (tree, found))
    return TokenTree(
        np.append(tree.tokens[nodes], found.tokens),
        np.append(np.arange(-1, size - 1), found.parents + size),
        source=found.source,
        scores=np.append(above[nodes], below * above[way[-1]]),
    )


def _fill(first: TokenTree, others: Sequence[TokenTree], budget: Budget) -> TokenTree:
    merged = first
    for draft in others:
        merged = trees.merge(merged, draft)
    return trees.limit(merged, budget.nodes, budget.depth)
