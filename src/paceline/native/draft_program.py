"""Native programs of drafter networks: operations beside those of a target."""

from __future__ import annotations

from struct import Struct
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from paceline.core.types import IntArray, LogitArray
from paceline.native.library import CHeads, CLayer, CMatrix, CPart, CView
from paceline.native.packed import Packed
from paceline.native.program import Columns, Program

# Columns that `pick` fills.
PICKED = 4

_KEY = 16

# Temperature and padding, after the key.
_SHARPNESS = Struct("<f4x")

# Elementwise operations of `join`.
SUM, PRODUCT, SILU, LSTM_GATE = range(4)


class Operand(NamedTuple):
    """Rows of a buffer, each repeated for `repeat` rows of the result; or weights for all rows."""

    rows: Columns | None
    repeat: int = 1
    weights: LogitArray | None = None


class ChainNoise(NamedTuple):
    """Gumbel noise of a chain's next tokens.

    Attributes:
        name: input that holds `noise_records` of all sequences in order.
        depth: records per sequence.
        first: record of the first row.
        slots: rows per sequence.
    """

    name: str
    depth: int
    first: int
    slots: int


class DraftProgram(Program):
    """Program of a drafter network. All attention has the shape `heads`."""

    def __init__(self, packed: Packed, heads: CHeads, longest: int) -> None:
        """Start an empty program; positions are below `longest`."""
        super().__init__(packed, heads)
        self._longest = longest

    def join(self, how: int, first: Operand, second: Operand, to: Columns) -> None:
        """Combine rows elementwise."""
        self._add("join", "join", how, self._part(first), self._part(second), to.width, _view(to))

    def unfold(self, at: Columns, slots: int, to: Columns) -> None:
        """Split every row into `slots` rows."""
        self._add("unfold", "unfold", _view(at), slots, to.width, _view(to))

    def pick(
        self, logits: Columns, ids: IntArray, to: Columns, drawn: ChainNoise | None = None
    ) -> None:
        """Pick argmax and runner-up of each row: ids as int32 bits, and their probabilities.

        Args:
            logits: of the draft vocabulary.
            ids: int64 `[columns]` token ids.
            to: `PICKED` columns.
            drawn: Gumbel noise to add where a run gives some; probabilities are then a softmax of
                the noised scores.
        """
        kept = self._packed.keep(ids.astype("int32"))
        noise = (-1, 0, 0, 1)
        if drawn is not None:
            noise = self._input(drawn.name), drawn.depth, drawn.first, drawn.slots
        self._add("pick", "pick", _view(logits), logits.width, kept, *noise, _view(to))

    def leave(self, picked: Columns, steps: int, name: str) -> None:
        """End the run if the first `steps` picked tokens of every row are unlikely to be accepted.

        `name` is the input with the least probability by row, float32.
        """
        self._add("leave", "leave", _view(picked), steps, self._input(name))

    def rescore_top_k(self, head: CMatrix, hidden: Columns, logits: Columns, best: int) -> None:
        """Replace the `best` largest logits of each row by exact ones; of equal ones the first.

        Args:
            head: at least a row per logit.
            hidden: input of the head.
            logits: head preview of them.
            best: how many.
        """
        self._add("refine", "refine", head, _view(hidden), logits.width, best, _view(logits))

    def runs(self, count: str, first: int = 0, slots: int = 0, block: bool = False) -> None:
        """Set the visible keys of the next attention: each sequence up to the row itself.

        Inputs are "sequences" and "tables" as in `paceline_runs`; `count` names their number. Rows
        of a `block` all see up to the last of its `slots`.
        """
        inputs = self._input("sequences"), self._input("tables")
        at = (*inputs, self._count(count), first, slots, block)
        self._add("paths", "runs", self._heads, self._longest, *at)

    def attend_lent(
        self,
        memory: npt.NDArray[Any],
        heads: CHeads,
        angles: LogitArray,
        at: Columns,
        to: Columns,
        *,
        further: int,
    ) -> None:
        """Attend over one layer's keys and values of another program; nothing is stored.

        Inputs: "lent_rows" `[rows, 3]`, of each its position less `further`, how many keys it sees,
        from the first, and the begin of its blocks in "lent_tables".

        Args:
            memory: keys, and values.
            heads: shape of that layer.
            angles: rotary table.
            at: queries.
            to: destination.
            further: see above.
        """
        self._kept.append(memory)
        layer = CLayer(
            *(each.ctypes.data for each in memory), self._packed.keep(angles), None, None
        )
        inputs = self._input("lent_rows"), self._input("lent_tables"), further
        self._add(
            "attention", "attend_lent", heads, layer, self._longest, *inputs, *map(_view, (at, to))
        )

    def attend_slots(self, at: Columns, slots: int, to: Columns) -> None:
        """Attend among the `slots` rows of each sequence."""
        self._add("attention", "attend_slots", self._heads, slots, _view(at), _view(to))

    def _part(self, of: Operand) -> CPart:
        weights = of.weights
        period = 1 if weights is None or weights.ndim == 1 else len(weights)
        return CPart(_view(of.rows), of.repeat, period, self._packed.keep(weights))


def noise_records(keys: bytes, temperature: float, depth: int) -> npt.NDArray[np.int32]:
    """Return int32 `[depth, 6]`, `Noise` of `drafting/drafting.hpp`; zeros without a key."""
    behind = _SHARPNESS.pack(1 / temperature)
    known = [keys[at : at + _KEY] + behind for at in range(0, _KEY * depth, _KEY) if at < len(keys)]
    records = b"".join(known).ljust(depth * (_KEY + len(behind)), b"\0")
    return np.frombuffer(records, dtype=np.int32).reshape(depth, -1)


def _view(columns: Columns | None) -> CView:
    return CView(-1, 0) if columns is None else CView(columns.buffer, columns.begin)
