"""Operations of drafter networks, beside those of a target (`drafting.hpp`)."""

from __future__ import annotations

from struct import Struct
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from paceline.core.types import IntArray, LogitArray
from paceline.native.library import Embeddings, Heads, Part, View
from paceline.native.packed import Packed, Tensors
from paceline.native.program import Columns, Program

PICKED = 4
"""Columns that `pick` fills."""

_KEY = 16
"""Bytes of a key."""

_SHARPNESS = Struct("<f4x")
"""And what stands behind it."""

SUM, PRODUCT, SILU = range(3)
"""How rows are put together."""


class Operand(NamedTuple):
    """Rows of a buffer, each for `repeat` rows of the result; or weights, as rows without end."""

    rows: Columns | None
    repeat: int = 1
    weights: LogitArray | None = None


class Drawn(NamedTuple):
    """Which noise the rows of a chain's next tokens are drawn with.

    Attributes:
        name: of the input: `noise_records` of all sequences, one after the other.
        depth: how many records each sequence has.
        first: which of them belongs to the first row.
        slots: rows of a sequence.
    """

    name: str
    depth: int
    first: int
    slots: int


class DraftProgram(Program):
    """A program of a network. Its attention has one shape, `heads`."""

    def __init__(self, packed: Packed, heads: Heads, longest: int) -> None:
        """Begin.

        Args:
            packed: weights, which the program keeps alive.
            heads: of attention.
            longest: positions are below it.

        Raises:
            RuntimeError: there is no library.
        """
        super().__init__(packed, heads)
        self._longest = longest

    def load(self, name: str, to: Columns) -> None:
        """Numbers that a run is given: float32 seen as int32, under that name of an input."""
        self._add("load", "load", self._input(name), to.width, _view(to))

    def join(self, how: int, first: Operand, second: Operand, to: Columns) -> None:
        """Put rows together, number by number."""
        self._add("join", "join", how, self._part(first), self._part(second), to.width, _view(to))

    def unfold(self, at: Columns, slots: int, to: Columns) -> None:
        """Of every row `slots` rows."""
        self._add("unfold", "unfold", _view(at), slots, to.width, _view(to))

    def pick(self, logits: Columns, ids: IntArray, to: Columns, drawn: Drawn | None = None) -> None:
        """The two likeliest of each row, each as the bits of its id, int32, and its chance.

        Args:
            logits: of the tokens.
            ids: int64 `[columns]` token ids.
            to: where they go.
            drawn: the noise that they are drawn with, where a run is given some; chances are then a
                softmax over what tokens score with it.
        """
        kept = self._packed.keep(ids.astype("int32"))
        noise = (-1, 0, 0, 1)
        if drawn is not None:
            noise = self._input(drawn.name), drawn.depth, drawn.first, drawn.slots
        self._add("pick", "pick", _view(logits), logits.width, kept, *noise, _view(to))

    def leave(self, picked: Columns, steps: int, name: str) -> None:
        """End the run if the first `steps` picked tokens of every row are unlikely to stand.

        Args:
            picked: of steps so far, as `pick` left it.
            steps: how many.
            name: of the input that says, float32 by row, below which chance that is.
        """
        self._add("leave", "leave", _view(picked), steps, self._input(name))

    def rescore_top_k(self, tensors: Tensors, hidden: Columns, logits: Columns, best: int) -> None:
        """Put exact logits in the place of the `best` largest of each row, see `rescore_top_k.hpp`.

        Args:
            tensors: "head.weight", int8 with "head.scale" or float32, a row per logit or more.
            hidden: what the head reads.
            logits: a forecast of them.
            best: how many; of equal ones the first.
        """
        names = ("head.weight", "head.scale")
        rows, scales = (self._packed.keep(tensors.get(name)) for name in names)
        parts = (None, None, rows) if scales is None else (rows, scales, None)
        head = Embeddings(hidden.width, len(tensors[names[0]]), *parts, None)
        self._add("refine", "refine", head, _view(hidden), logits.width, best, _view(logits))

    def runs(self, count: str, first: int = 0, slots: int = 0) -> None:
        """What rows see that attend next: their sequence up to themselves.

        Inputs "sequences" and "tables" as in `paceline_runs`; `count` names how many sequences.
        """
        inputs = self._input("sequences"), self._input("tables")
        at = (*inputs, self._count(count), first, slots)
        self._add("paths", "runs", self._heads, self._longest, *at)

    def attend_slots(self, at: Columns, slots: int, to: Columns) -> None:
        """Attention of `slots` rows over one another."""
        self._add("attention", "attend_slots", self._heads, slots, _view(at), _view(to))

    def _part(self, of: Operand) -> Part:
        weights = of.weights
        period = 1 if weights is None or weights.ndim == 1 else len(weights)
        return Part(_view(of.rows), of.repeat, period, self._packed.keep(weights))


def noise_records(keys: bytes, temperature: float, depth: int) -> npt.NDArray[np.int32]:
    """int32 `[depth, 6]`, `Noise` of `drafting.hpp`; zeros where there is no key."""
    behind = _SHARPNESS.pack(1 / temperature)
    known = [keys[at : at + _KEY] + behind for at in range(0, _KEY * depth, _KEY) if at < len(keys)]
    records = b"".join(known).ljust(depth * (_KEY + len(behind)), b"\0")
    return np.frombuffer(records, dtype=np.int32).reshape(depth, -1)


def _view(columns: Columns | None) -> View:
    return View(-1, 0) if columns is None else View(columns.buffer, columns.begin)
