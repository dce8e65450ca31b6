"""Drafts of several drafters in one tree under one budget.

Every part drafts by itself. Their trees are laid over each other, and the union is read from the
likeliest node on. How likely a node is follows from who proposes it and how sure they are: each
set of proposers and level of confidence has a hit rate of its own, learned from what was committed,
so that two sources that agree count for more than either, and a source that is wrong in this text
loses its say.

Two published ways to merge are settings: Graft (prune the first drafter's tree where it is unsure
and fill the space with the others' nodes) and RASD (Quan et al. 2025, arXiv:2503.03434: retrieved
continuations enter only where the first drafter's tree has their first token too).
"""

from __future__ import annotations

from collections.abc import Sequence as List
from dataclasses import replace
from typing import ClassVar, Literal

import numpy as np

from paceline import tree as trees
from paceline.drafters.base import Drafter
from paceline.drafters.best_first import Guess, Offer
from paceline.drafters.parts import Parts
from paceline.drafters.statistics import HitRates
from paceline.errors import InvalidOption
from paceline.options import require
from paceline.sequence import Sequence
from paceline.shapes.prune import confident
from paceline.target import Output
from paceline.types import ROOT, Budget, TokenTree, Verdict

Way = Literal["blend", "graft", "fuse"]

_LEVELS = 10
"""Levels of confidence that are told apart."""

_UNSCORED = 0.6
"""Chance of a node, given its parent, in drafts that come without scores."""

_BELIEF = 12.0
"""Trials that the first guess of a hit rate counts for."""

_ABSENT = -2


class Merged(Parts):
    """Several deterministic drafters as one."""

    name: ClassVar[str] = "merged"

    def __init__(self, parts: List[Drafter], *, way: Way = "blend", floor: float = 0.3) -> None:
        """Merge drafters.

        Args:
            parts: the drafters; for "graft" and "fuse" the leading one first.
            way: "blend" takes the likeliest nodes of all; "graft" keeps the first drafter's nodes
                down to `floor` and fills up with others; "fuse" takes all of the first drafter's
                nodes, and those of others that begin with a token it drafted.
            floor: of a node's estimated acceptance, in [0, 1]; "graft" alone reads it.

        Raises:
            InvalidOption: fewer than two parts or too many, or one that draws its drafts.
        """
        super().__init__(parts)
        for part in parts:
            if part.kind is not None:
                raise InvalidOption(
                    f"drafter '{part.name}' draws its drafts for this verifier, and drawn drafts "
                    "cannot be merged: use verifier 'coupled'"
                )
        require(0 <= floor <= 1, "floor", floor, "in [0, 1]")
        self._way = way
        self._floor = floor
        self._names = [part.name for part in parts]
        self._blender = Blender(len(parts))
        self._guesses: dict[int, tuple[int, Guess]] = {}

    def reset(self) -> None:
        """Forget everything learned, in all parts and about them."""
        super().reset()
        self._blender = Blender(len(self.parts))

    def propose(self, sequences: List[Sequence], budgets: List[Budget]) -> list[TokenTree]:
        """One tree per sequence; a node's origin is the first part that proposed it."""
        drafts = zip(*(part.propose(sequences, budgets) for part in self.parts), strict=True)
        if self._way != "blend":
            merge = self._graft if self._way == "graft" else _fuse
            return [merge(each, budget) for each, budget in zip(drafts, budgets, strict=True)]
        self._blender.ready()
        out = []
        for sequence, budget, each in zip(sequences, budgets, drafts, strict=True):
            guess, sources = self._blender.blend(each, budget)
            self._guesses[sequence.id] = (len(sequence.tokens), guess)
            origins = tuple(self._names[source] for source in sources)
            out.append(replace(guess.tree(self.name), origins=origins))
        return out

    def observe(
        self,
        sequences: List[Sequence],
        drafts: List[TokenTree],
        verdicts: List[Verdict],
        outputs: List[Output],
    ) -> None:
        """All parts learn, and so does the blend from what became of its guesses."""
        super().observe(sequences, drafts, verdicts, outputs)
        for sequence in sequences:
            open_guess = self._guesses.pop(sequence.id, None)
            if open_guess is not None:
                begin, guess = open_guess
                guess.learn(sequence.tokens[begin:], self._blender.rates)

    def close(self, sequence: Sequence) -> None:
        """Tell all parts."""
        super().close(sequence)
        self._guesses.pop(sequence.id, None)

    def _graft(self, drafts: List[TokenTree], budget: Budget) -> TokenTree:
        return _fill(confident(drafts[0], self._floor), drafts[1:], budget)


class Blender:
    """Learned chances of nodes that several sources propose.

    Attributes:
        rates: hit rates by who proposes a token and how sure they are, given that no likelier
            token comes.
    """

    def __init__(self, sources: int) -> None:
        """Believe at first that sources err independently."""
        levels = (np.arange(_LEVELS) + 0.5) / _LEVELS
        self.rates = HitRates(np.tile(levels, (1 << sources, 1)), _BELIEF)
        self.ready()

    def ready(self) -> None:
        """Take the hit rates of the moment for the drafts that follow."""
        self._table: list[list[float]] = self.rates.rates.tolist()

    def blend(self, drafts: List[TokenTree], budget: Budget) -> tuple[Guess, list[int]]:
        """The likeliest nodes of the union of drafts.

        Returns:
            The nodes with the reasons for them, and per node the index of the first draft that
            has it.
        """
        readers = [_Reader(draft) for draft in drafts]

        def offers(place: tuple[int, ...], reach: float) -> List[Offer]:
            return self._offers(readers, place)

        def follow(place: tuple[int, ...], token: int) -> tuple[int, ...]:
            return tuple(
                reader.child(node, token) for reader, node in zip(readers, place, strict=True)
            )

        root = (ROOT,) * len(drafts)
        guess = Guess.grow(root, budget, offers, follow)
        places: list[tuple[int, ...]] = []
        for parent, token in zip(guess.parents, guess.tokens, strict=True):
            places.append(follow(root if parent == ROOT else places[parent], token))
        return guess, [_first(place) for place in places]

    def _offers(self, readers: List[_Reader], place: tuple[int, ...]) -> List[Offer]:
        found: dict[int, tuple[float, int]] = {}
        for index, (reader, node) in enumerate(zip(readers, place, strict=True)):
            for token, chance in reader.offers(node):
                miss, sources = found.get(token, (1.0, 0))
                found[token] = (miss * (1 - chance), sources | 1 << index)
        left = 1.0
        out: list[Offer] = []
        for token, (miss, sources) in sorted(found.items(), key=_likeliest):
            level = min(int((1 - miss) * _LEVELS), _LEVELS - 1)
            chance = left * self._table[sources][level]
            left -= chance
            out.append((token, chance, (sources, level)))
        return out


class _Reader:
    """A draft by parent: which tokens it offers there, and how likely each is there."""

    def __init__(self, draft: TokenTree) -> None:
        self._nodes: dict[tuple[int, int], int] = {}
        self._offers: dict[int, list[tuple[int, float]]] = {}
        scores = None if draft.scores is None else draft.scores.tolist()
        pairs = zip(draft.parents.tolist(), draft.tokens.tolist(), strict=True)
        for node, (parent, token) in enumerate(pairs):
            self._nodes[parent, token] = node
            chance = _UNSCORED
            if scores is not None:
                above = 1.0 if parent == ROOT else scores[parent]
                chance = scores[node] / above if above else 0.0
            self._offers.setdefault(parent, []).append((token, chance))

    def offers(self, node: int) -> List[tuple[int, float]]:
        """Tokens under a node and their chances given the node."""
        return self._offers.get(node, ())

    def child(self, node: int, token: int) -> int:
        """The child of `node` with that token."""
        return self._nodes.get((node, token), _ABSENT)


def _first(place: tuple[int, ...]) -> int:
    return next(index for index, node in enumerate(place) if node != _ABSENT)


def _likeliest(item: tuple[int, tuple[float, int]]) -> float:
    return item[1][0]


def _fuse(drafts: List[TokenTree], budget: Budget) -> TokenTree:
    """The first draft, and of others what begins with a token that it has under the root."""
    first, *others = drafts
    known = set(first.tokens[first.parents == ROOT].tolist())
    fitting = []
    for draft in others:
        keep = np.zeros(len(draft), dtype=np.bool_)
        pairs = zip(draft.tokens.tolist(), draft.parents.tolist(), strict=True)
        for node, (token, parent) in enumerate(pairs):
            keep[node] = token in known if parent == ROOT else keep[parent]
        fitting.append(trees.take(draft, np.flatnonzero(keep)))
    return _fill(first, fitting, budget)


def _fill(first: TokenTree, others: List[TokenTree], budget: Budget) -> TokenTree:
    """The first draft, and behind it what others add to it, as far as the budget goes."""
    merged = first
    for draft in others:
        merged = trees.merge(merged, draft)
    return trees.limit(merged, budget.nodes, budget.depth)
