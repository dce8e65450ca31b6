"""Drafters that write a sound down on their own, all of it, before a text of it begins."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence
from dataclasses import replace
from typing import Any, ClassVar, Self, cast

import numpy as np

from paceline.core import tree as trees
from paceline.core.target import Listens
from paceline.core.types import Budget, LogitArray, TokenTree
from paceline.drafters.base import Drafter, DrafterContext
from paceline.drafters.network.weights import weights_of
from paceline.engine.client_drafts import Follower
from paceline.errors import InvalidOption
from paceline.methods.gad.block import hearing
from paceline.networks.runner import ContextUpdate, NetworkTarget, Runner
from paceline.networks.weights import Trained
from paceline.sampling.generation import Generation

EVERY = 4
"""Of the encoder's rows, which stand for 20 ms each, one in so many is read."""


def rows_of_sound(target: Listens, cache: object) -> LogitArray:
    """Return what networks read of a text's sound, float32 `[rows, 2 * kv_heads * head_dim]`.

    Rows are read as the keys and values that the decoder's last layer looks at, linear functions
    of them that are there in any case.
    """
    found = target.heard(cache, -1, EVERY)
    return found.reshape(len(found), -1)


class TranscriptDrafter(Drafter):
    """Draft what a transcript of the sound says next, as a text that is likely to be repeated."""

    marks: ClassVar[bool] = True
    """Times are written too."""

    def __init__(self, target: Listens, trained: Trained) -> None:
        self._target, self._trained = target, trained
        self._runner: Runner = cast(NetworkTarget, target).run_network(trained)
        self._followers: dict[int, Follower] = {}

    @classmethod
    def create(cls, context: DrafterContext) -> Self:
        """Load the weights of option `weights`, or those that ship; errors: `weights_of`."""
        target = hearing(context, cls.name)
        options = dict(context.options)
        given = options.pop("weights", None)
        if options:
            raise InvalidOption(f"drafter '{cls.name}' has no option {min(options)!r}: use weights")
        return cls(target, weights_of(cls.name, given, context.model, context.target))

    @property
    def tolerates_gaps(self) -> bool:
        return True

    def open(self, sequence: Generation) -> None:
        rows = rows_of_sound(self._target, sequence.cache)
        marks = None if self.marks else sequence.speculation.marks
        self._followers[sequence.id] = Follower(self.transcript(rows, sequence.cache), marks)

    @abstractmethod
    def transcript(self, rows: LogitArray, cache: Any) -> Sequence[int]:
        """Return the tokens that rows of a sound say, which a text with this cache looks at."""

    def said(self, rows: LogitArray, cache: Any = None) -> list[int]:
        """Return what the network says of rows, `width` of them at a time, all in one pass."""
        whole = ContextUpdate(None, rows, [0] * len(rows), cache)
        parts = [
            replace(each, cache=self._runner.open()) for each in whole.parts(self._runner.depth)
        ]
        chains = self._runner.draft(parts, self._runner.depth) if parts else []
        for each in parts:
            self._runner.release(each.cache)
        # Of a part that is shorter the first row comes again, in front.
        pairs = zip(parts, chains, strict=True)
        return [token for part, chain in pairs for token in chain.tokens[-len(part.tokens) :]]

    def draft(self, sequence: Generation, budget: Budget) -> TokenTree:
        follower = self._followers[sequence.id]
        follower.read(sequence.tokens, sequence.prompt_length)
        chances = follower.reach()[: min(budget.nodes, budget.depth)]
        tokens = follower.next(len(chances))
        return trees.chain(tokens, self.name, scores=np.array(chances))

    def close(self, sequence: Generation) -> None:
        self._followers.pop(sequence.id, None)
