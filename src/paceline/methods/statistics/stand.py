"""STAND (Song et al. 2025, arXiv:2506.04708): draft from stored n-gram distributions of the target,
averaged and shared by all sequences. Without-replacement drafts use Gumbel-top-k. Added: all
context lengths contribute, prompts are read, and the tree expands by acceptance rates
(`paceline.methods.statistics.stand`) instead of a fixed shape.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import ClassVar, Literal, Self

import numpy as np

from paceline.core import tree as trees
from paceline.core.options import arguments
from paceline.core.types import ROOT, Budget, Distribution, Needs, TokenTree, Verdict
from paceline.drafters.base import DrafterContext
from paceline.drafters.candidates import CandidateDrafter
from paceline.methods.statistics.context_model import PROMPT_WEIGHT, ContextModel
from paceline.policy.acceptance import HitRates
from paceline.policy.constants import DRAWN_EDGES, DRAWN_RATES
from paceline.sampling.generation import Generation, VerifiedDraft
from paceline.sampling.randomness import Draw, Purpose, Randomness
from paceline.trees.base import BestFirst, TreeBuilder, race, successive
from paceline.trees.candidates import CandidateTree, Offer, Place

Lots = Literal["noise", "one-by-one"]

# Most candidates per node.
_SPAN = 16


def acceptance_rates() -> HitRates:
    """Return fresh acceptance rates by (rank of a child, bin of its parent)."""
    return HitRates(np.array(DRAWN_RATES), weight=16.0)


class DrawnTree(CandidateTree):
    """A draft whose tokens were sampled."""

    def __init__(self) -> None:
        super().__init__()
        self._kinds: dict[int, int] = {}
        self._tree = trees.EMPTY

    @classmethod
    def draw(
        cls,
        place: Place,
        budget: Budget,
        offers: Callable[[Place, float], Sequence[Offer]],
        follow: Callable[[Place, int], Place],
        size: int,
        position: int,
        randomness: Randomness,
        accepted: HitRates,
        lots: Lots,
    ) -> DrawnTree:
        """Sample children where acceptance is most probable, until the budget is spent.

        Args:
            place, budget, offers, follow: as for `CandidateTree.grow`.
            size: of the vocabulary.
            position: absolute position of the first drafted token.
            accepted: see `acceptance_rates`.
            lots: "noise" samples by Gumbel-top-k; "one-by-one" has the same distribution, in draws
                that can be enumerated.
        """
        guess = cls()
        builder = TreeBuilder(budget, position)
        guess.nodes = builder.nodes
        rates = accepted.table
        queue: BestFirst[tuple[int, int, Place, float, Iterator[int]]] = BestFirst()
        noise = np.zeros((0, 0))

        def wait(node: int, rank: int, place: Place, reach: float, tokens: Iterator[int]) -> None:
            rate = rates[min(rank, len(rates) - 1)][guess._kinds[node]]
            queue.push(reach * rate, (node, rank, place, reach, tokens))

        def begin(node: int, place: Place, reach: float) -> None:
            found = guess._offers[node] = offers(place, reach)[:_SPAN]
            if not found:
                return
            guess._kinds[node] = bisect_right(DRAWN_EDGES, sum(chance for _, chance, _ in found))
            q = builder.rows[node] = _distribution(found, size)
            if lots == "noise":
                order = race(q.probs, noise[node + 1, : len(q.probs)], len(q.probs))
                tokens = (q.token(index) for index in order.tolist())
            else:
                tokens = (token for token, _ in successive(q, builder.names(node), randomness))
            wait(node, 0, place, reach, tokens)

        if budget.nodes > 0 and budget.depth > 0:
            if lots == "noise":
                draw = Draw(position, Purpose.DRAFT, root=position - 1)
                uniform = randomness.uniform((budget.nodes + 1) * _SPAN, draw)
                noise = uniform.reshape(-1, _SPAN)
            begin(ROOT, place, 1.0)
        while queue and builder.room:
            value, (parent, rank, above, reach, tokens) = queue.pop()
            token = next(tokens, None)
            if token is None:
                continue
            node = builder.add(parent, token)
            if builder.depth(node) < budget.depth and builder.room:
                begin(node, follow(above, token), value)
            wait(parent, rank + 1, above, reach - value, tokens)
        guess._tree = builder.finish("without_replacement")
        return guess

    def tree(self, source: str = "", origins: tuple[str, ...] = ()) -> TokenTree:
        return replace(self._tree, source=source, origins=origins)

    def is_source_of(self, draft: TokenTree) -> bool:
        """Return whether `tree` made this draft."""
        return draft.sampling is self._tree.sampling

    def settle(self, verdict: Verdict, accepted: HitRates) -> None:
        """Count the children tried along the accepted path as hits and misses."""
        below = trees.children(self._tree)
        above = ROOT
        for accepted_node in (*verdict.path, None):
            for rank, child in enumerate(below.get(above, ())):
                cell = (min(rank, len(DRAWN_RATES) - 1), self._kinds[above])
                accepted.add(cell, child == accepted_node)
                if child == accepted_node:
                    break
            above = ROOT if accepted_node is None else accepted_node


def _distribution(offers: Sequence[Offer], size: int) -> Distribution:
    pairs = sorted((token, chance) for token, chance, _ in offers)
    chances = np.array([chance for _, chance in pairs])
    ids = np.array([token for token, _ in pairs], dtype=np.int64)
    return Distribution(chances / chances.sum(), ids, size)


# Tokens of the longest context.
ORDER = 3

# Stored contexts.
CAPACITY = 1 << 16


class Stand(CandidateDrafter[ContextModel]):
    """Draft from stored target distributions, as most probable trees or as drawn ones."""

    name: ClassVar[str] = "stand"
    requires = "logits of rejected nodes; draws for verifier 'recursive-distinct'"
    paper = "after STAND, Song et al. 2025, arXiv:2506.04708"
    needs: Needs = Needs(node_logits=True)
    ranks: ClassVar[bool] = True

    def __init__(self, vocab_size: int, *, drawn: bool = False, lots: Lots = "noise") -> None:
        """Make an empty model; `drawn` reports a distribution, `lots` is as in `DrawnTree.draw`."""
        self._vocab_size = vocab_size
        self._drawn = drawn
        self.kind = "without_replacement" if drawn else None
        self._lots: Lots = lots
        super().__init__()

    @classmethod
    def create(cls, context: DrafterContext) -> Self:
        # Drawn where the verifier takes drawn drafts alone.
        drawn = context.needs_q and "without_replacement" in context.accepts
        chosen = arguments(cls, "drafter", context.options, "vocab_size", "drawn")
        return cls(context.target.vocab_size, drawn=drawn, **chosen)

    def reset(self) -> None:
        self._model = ContextModel(ORDER, CAPACITY)
        self._accepted = acceptance_rates()

    def open(self, sequence: Generation) -> None:
        self._model.read(sequence.tokens, 0, PROMPT_WEIGHT)

    def learn(self, verified: VerifiedDraft) -> None:
        sequence, draft, verdict, output = verified
        if self._left_out(sequence):
            return
        begin, guess = self._settle(sequence)
        if isinstance(guess, DrawnTree) and guess.is_source_of(draft):
            guess.settle(verdict, self._accepted)
        self._model.recycle(sequence.tokens[max(0, begin - ORDER) : begin], draft, output.logits)

    def _guess(self, sequence: Generation, budget: Budget) -> CandidateTree:
        model = self._model
        if self.kind is None:
            return model.grow(sequence.tokens, budget)
        return DrawnTree.draw(
            model.tail(sequence.tokens),
            budget,
            model.offers,
            model.follow,
            self._vocab_size,
            len(sequence.tokens),
            sequence.randomness,
            self._accepted,
            self._lots,
        )
