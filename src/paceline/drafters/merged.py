"""Tree merging: drafts of several drafters in one tree under one budget. A node's acceptance
probability is the hit rate of its set of proposers at their level of confidence. Published ways
are settings: Graft, and RASD (Quan et al. 2025, arXiv:2503.03434).
"""

from __future__ import annotations

from collections.abc import Sequence as List
from typing import ClassVar, Literal

import numpy as np

from paceline import tree as trees
from paceline.drafters.base import Drafter
from paceline.drafters.best_first import Guess
from paceline.drafters.blender import Blender
from paceline.drafters.parts import Parts
from paceline.errors import InvalidOption
from paceline.options import require
from paceline.sequence import Sequence
from paceline.shapes.prune import confident
from paceline.target import Output
from paceline.types import ROOT, Budget, TokenTree, Verdict

Way = Literal["blend", "graft", "fuse"]


class Merged(Parts):
    """Merge several deterministic drafters into one."""

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
        super().reset()
        self._blender = Blender(len(self.parts))

    def propose(self, sequences: List[Sequence], budgets: List[Budget]) -> list[TokenTree]:
        drafts = zip(*(part.propose(sequences, budgets) for part in self.parts), strict=True)
        if not any(budget.nodes and budget.depth for budget in budgets):
            return [Guess().tree(self.name) for _ in drafts]
        if self._way != "blend":
            merge = self._graft if self._way == "graft" else _fuse
            return [merge(each, budget) for each, budget in zip(drafts, budgets, strict=True)]
        out = []
        for sequence, budget, each in zip(sequences, budgets, drafts, strict=True):
            guess, sources = self._blender.blend(each, budget)
            self._guesses[sequence.id] = (len(sequence.tokens), guess)
            origins = tuple(map(self._names.__getitem__, sources))
            out.append(guess.tree(self.name, origins))
        return out

    def observe(
        self,
        sequences: List[Sequence],
        drafts: List[TokenTree],
        verdicts: List[Verdict],
        outputs: List[Output],
    ) -> None:
        super().observe(sequences, drafts, verdicts, outputs)
        for sequence in sequences:
            open_guess = self._guesses.pop(sequence.id, None)
            if open_guess is not None:
                begin, guess = open_guess
                guess.learn(sequence.tokens[begin:], self._blender.rates)

    def close(self, sequence: Sequence) -> None:
        super().close(sequence)
        self._guesses.pop(sequence.id, None)

    def _graft(self, drafts: List[TokenTree], budget: Budget) -> TokenTree:
        return _fill(confident(drafts[0], self._floor), drafts[1:], budget)


def _fuse(drafts: List[TokenTree], budget: Budget) -> TokenTree:
    # The first draft, and of the others what begins with a token that it has under the root.
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
    merged = first
    for draft in others:
        merged = trees.merge(merged, draft)
    return trees.limit(merged, budget.nodes, budget.depth)
