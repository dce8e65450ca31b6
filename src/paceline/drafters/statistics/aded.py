"""ADED (Liu et al. 2024, arXiv:2407.12021): tri-gram drafts, adapted to the committed text.

Tri-grams come from the prompt and the target's distributions, not from a corpus. The default
tree search is best-first, which is optimal for known probabilities; "puct" is the paper's.
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Callable
from collections.abc import Sequence as List
from typing import ClassVar, Generic, Literal

from paceline.core.target import Output
from paceline.core.types import ROOT, Budget, Needs, TokenTree, Verdict
from paceline.drafters.candidates import CandidateDrafter
from paceline.drafters.statistics.context_model import PROMPT_WEIGHT, ContextModel
from paceline.sampling.sequence import Sequence
from paceline.trees.candidates import CandidateTree, Offer, Place

# Exploration constants c1 and c2 of the paper.
_BASE, _SCALE = 32.0, 8.0


class _Branch(Generic[Place]):
    place: Place

    def __init__(self, token: int, chance: float, reach: float) -> None:
        self.token = token
        self.chance = chance
        self.reach = reach
        self.visits = 0
        self.gain = 0.0
        self.offers: List[Offer] | None = None
        self.below: list[_Branch[Place]] = []

    def next(self) -> _Branch[Place]:
        # PUCT: the highest mean gain, plus a bonus for the likely but little tried.
        explore = (_BASE + math.log((self.visits + _SCALE + 1) / _SCALE)) * math.sqrt(self.visits)

        def value(child: _Branch[Place]) -> tuple[float, float]:
            mean = child.gain / child.visits if child.visits else 0.0
            return mean + explore * child.chance / (1 + child.visits), child.chance

        return max(self.below, key=value)


class Searched(CandidateTree):
    """Guess of the nodes that a search visited most; `visits` holds their visit counts."""

    def __init__(self) -> None:
        super().__init__()
        self.visits: list[int] = []

    @classmethod
    def search(
        cls,
        place: Place,
        budget: Budget,
        offers: Callable[[Place, float], List[Offer]],
        follow: Callable[[Place, int], Place],
        iterations: int,
    ) -> Searched:
        """Search `iterations` paths, and keep the nodes visited most; arguments as for
        `CandidateTree.grow`.

        An iteration descends by PUCT to the greatest depth and credits every node of the path with
        its expected accepted tokens. The paper ends a path with drawn tokens; here the draft stays
        a function of the context.
        """
        root: _Branch[Place] = _Branch(ROOT, 1.0, 1.0)
        root.place = place
        depth = budget.depth if budget.nodes > 0 else 0
        for _ in range(iterations if depth > 0 else 0):
            path = [root]
            while len(path) <= depth:
                end = path[-1]
                if end.offers is None:
                    if end is not root:
                        end.place = follow(path[-2].place, end.token)
                    end.offers = offers(end.place, end.reach)
                    end.below = [
                        _Branch(t, chance, end.reach * chance) for t, chance, _ in end.offers
                    ]
                if not end.below:
                    break
                path.append(end.next())
            gain = sum(branch.reach for branch in path)
            for branch in path:
                branch.visits += 1
                branch.gain += gain
        return cls._most_visited(root, budget.nodes)

    @classmethod
    def _most_visited(cls, root: _Branch[Place], nodes: int) -> Searched:
        # No node is visited more than its parent, so these are a tree.
        guess = cls()
        heap: list[tuple[int, float, int, int, _Branch[Place]]] = []
        serial = 0

        def enter(node: int, branch: _Branch[Place]) -> None:
            nonlocal serial
            guess._offers[node] = branch.offers or ()
            for child in branch.below:
                serial += 1
                if child.visits:
                    heapq.heappush(heap, (-child.visits, -child.reach, serial, node, child))

        enter(ROOT, root)
        while heap and len(guess.tokens) < nodes:
            _, _, _, parent, branch = heapq.heappop(heap)
            guess.visits.append(branch.visits)
            enter(guess.add(parent, branch.token, branch.reach), branch)
        return guess


Search = Literal["best-first", "puct"]

# Context length of a tri-gram.
ORDER = 2

# Most contexts in the table.
CAPACITY = 1 << 16

# Weight of a committed token, relative to one distribution of the target.
ADAPTATION = 1.0

# The paper's number of PUCT trials.
ITERATIONS = 150


class Aded(CandidateDrafter[ContextModel]):
    """Tri-gram drafter over all sequences."""

    name: ClassVar[str] = "aded"
    needs: Needs = Needs(node_logits=True)
    ranks: ClassVar[bool] = True

    def __init__(self, search: Search = "best-first", iterations: int = ITERATIONS) -> None:
        """Choose the tree search; the published "puct" is several times slower."""
        self._iterations = iterations if search == "puct" else None
        super().__init__()

    def reset(self) -> None:
        self._model = ContextModel(ORDER, CAPACITY)

    def open(self, sequence: Sequence) -> None:
        self._model.read(sequence.tokens, 0, PROMPT_WEIGHT)

    def observe(
        self,
        sequences: List[Sequence],
        drafts: List[TokenTree],
        verdicts: List[Verdict],
        outputs: List[Output],
    ) -> None:
        for sequence, draft, output in zip(sequences, drafts, outputs, strict=True):
            if self._left_out(sequence):
                continue
            begin, _ = self._settle(sequence)
            self._model.recycle(
                sequence.tokens[max(0, begin - ORDER) : begin], draft, output.logits
            )
            self._model.read(sequence.tokens, begin, ADAPTATION)

    def _guess(self, sequence: Sequence, budget: Budget) -> CandidateTree:
        model = self._model
        if self._iterations is None:
            return model.grow(sequence.tokens, budget)
        root = model.tail(sequence.tokens)
        return Searched.search(root, budget, model.offers, model.follow, self._iterations)
