"""The canvas of one sequence: what is filled, what is final, and the rows of a forward over it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from math import fsum
from typing import NamedTuple

import numpy as np

from paceline.core.types import Attention, BoolArray, IntArray


class Fill(NamedTuple):
    """A token that was put at a place, and its log-probability there and then."""

    step: int
    place: int
    token: int
    logprob: float


@dataclass(slots=True)
class Canvas:
    """A text of which some places hold the mask. Places are absolute positions.

    Attributes:
        mask: id of the mask token.
        tokens: of the prompt and of all places so far.
        begin: first place of the answer.
        end: places that the answer may have, at most; it shrinks where an end token cuts it.
        block: the places that are filled now.
        span: the attention block of these places; all places if attention has no blocks.
        pinned: places whose tokens were given, and never change.
        step: forwards so far.
        trace: what was filled, in order.
        final: length of what cannot change any more.
    """

    mask: int
    tokens: list[int]
    begin: int
    end: int
    block: range
    span: range
    pinned: Mapping[int, int] = field(default_factory=dict)
    step: int = 0
    trace: list[Fill] = field(default_factory=list)
    final: int = 0

    def __post_init__(self) -> None:
        self.final = max(self.final, self.begin)

    def extend(self, length: int) -> None:
        """Add places up to `length`: masks, or what is pinned there."""
        for place in range(len(self.tokens), min(length, self.end)):
            self.tokens.append(self.pinned.get(place, self.mask))

    def cut(self, end: int) -> None:
        """Drop all places from `end` on."""
        del self.tokens[end:]
        self.end = end
        self.block = range(self.block.start, min(self.block.stop, end))
        self.span = range(self.span.start, min(self.span.stop, end))

    def masked(self) -> IntArray:
        """Return int64: the places of the block that hold the mask, ascending."""
        held = np.asarray(self.tokens[self.block.start : self.block.stop], dtype=np.int64)
        found: IntArray = np.flatnonzero(held == self.mask) + self.block.start
        return found

    def filled(self) -> list[int]:
        """Return the tokens of the answer's filled places, in their order."""
        return [token for token in self.tokens[self.begin :] if token != self.mask]

    def put(self, place: int, token: int, logprob: float = 0.0) -> None:
        self.tokens[place] = token
        self.trace.append(Fill(self.step, place, token, logprob))

    def logprob(self, end: int) -> float:
        """Return the sum of log-probabilities, in nats, of what was put before place `end`."""
        return fsum(fill.logprob for fill in self.trace if fill.place < end)

    def run(self) -> int:
        """Return the first masked place from the frontier on, or the length."""
        for place in range(self.final, len(self.tokens)):
            if self.tokens[place] == self.mask:
                return place
        return len(self.tokens)

    def copy(self) -> Canvas:
        return replace(self, tokens=list(self.tokens), trace=list(self.trace))


class Ask(NamedTuple):
    """Rows of a forward: what a process asks of the model.

    Attributes:
        tokens: int64 `[rows]`; the mask id for masked places.
        places: int64 `[rows]`, rotary positions; they may repeat.
        sees: bool `[rows, rows]`, in the order of rows.
        wanted: int64, ascending: rows whose logits are asked for; None for all.
        cached: int64 `[rows]`, how many cached keys a row sees, from the first; None for all.
        drop: cut the cache to so many keys first; None leaves it.
    """

    tokens: IntArray
    places: IntArray
    sees: BoolArray
    wanted: IntArray | None = None
    cached: IntArray | None = None
    drop: int | None = None


def visible(
    rows: IntArray, keys: IntArray, attention: Attention, block: int | IntArray
) -> BoolArray:
    """Return bool `[rows, keys]`: which places each place sees.

    "full": all; "block": those of its own block and of earlier ones; "order" and "causal": itself
    and those before it. Blocks have one size, counted from place 0, or int64 ascending first
    places: text in blocks of one and an image as a whole is DiDA's mask (arXiv:2510.26583).
    """
    if attention == "full":
        return np.ones((len(rows), len(keys)), dtype=np.bool_)
    if attention in ("order", "causal"):
        block = 1
    if isinstance(block, int):
        seen: BoolArray = keys[None] // block <= rows[:, None] // block
        return seen
    unequal: BoolArray = (
        np.searchsorted(block, keys, "right")[None]
        <= np.searchsorted(block, rows, "right")[:, None]
    )
    return unequal


def tokens_at(canvas: Canvas, places: Sequence[int] | IntArray) -> IntArray:
    """Return int64 tokens of the canvas at some places."""
    return np.asarray([canvas.tokens[place] for place in places], dtype=np.int64)
