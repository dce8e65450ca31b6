"""Writes expressions (`native_network_rows`) down as operations of a program."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from paceline.native import drafting
from paceline.native.drafting import DraftProgram
from paceline.native.packed import Packed
from paceline.native.program import Columns
from paceline.networks.screen import REFINED
from paceline.runtimes.native_network_rows import (
    LANES,
    Attended,
    Embedded,
    Joined,
    Last,
    Linear,
    Normed,
    Operand,
    Part,
    Refined,
    Rows,
    Silu,
    Sum,
    Times,
    Unfolded,
    Weight,
    gates,
)
from paceline.types import LogitArray

Tensors = Mapping[str, np.ndarray]


class Writing:
    """A program that is being written.

    Buffers have "rows" context rows, or "slots1", "slots2", ... draft rows, so many per sequence.
    """

    def __init__(
        self, program: DraftProgram, tensors: Tensors, packed: Packed, norm_eps: float
    ) -> None:
        """Begin.

        Args:
            program: what operations are added to.
            tensors: weights by name.
            packed: matrices that were used before.
            norm_eps: epsilon of RMS norms.
        """
        self.program = program
        self._tensors = tensors
        self._packed = packed
        self._eps = norm_eps
        self._rooms: dict[int, int] = {}
        self._slots = {1}

    @property
    def operations(self) -> int:
        """How many there are so far."""
        return len(self.program.names)

    def columns(self, x: Rows, to: Columns | None = None) -> Columns:
        """Where rows are, or will be when the program has come so far.

        Args:
            x: the rows.
            to: where they are wanted; None where it does not matter.
        """
        if x.written is None:
            if to is None and isinstance(x, Part):
                x.written = self.columns(x.of).part(x.begin, x.width)
            else:
                x.written = to or self.buffer(x.slots, x.width)
                self._write(x, x.written)
        elif to is not None and x.written != to:
            self.program.gather(x.written, None, to)
        if isinstance(x, Attended):
            x.whole[:] = 1
        return x.written

    def buffer(self, slots: int, width: int) -> Columns:
        """A new one, with room for products, which write past the end of odd widths."""
        room = width if width % LANES == 0 else (width // LANES + 2) * LANES
        self._slots.add(slots)
        made = self.program.buffer(rows_of(slots), room)
        self._rooms[made.buffer] = room
        return made.part(0, width)

    def counts(self, sequences: int, rows: int = 0) -> dict[str, int]:
        """How many rows buffers have in a run.

        Args:
            sequences: how many there are, or branches.
            rows: how many context rows.
        """
        return {rows_of(each): each * sequences if each else rows for each in self._slots}

    def read(self, of: Columns, rows: int) -> LogitArray:
        """float32 `[rows, width]` of the last run, a view that the next overwrites."""
        whole = self.program.read(Columns(of.buffer, 0, self._rooms[of.buffer]), rows)
        return whole[:, of.begin : of.begin + of.width]

    def _write(self, x: Rows, to: Columns) -> None:
        """Add the operations that compute rows."""
        program = self.program
        match x:
            case Embedded():
                program.embed(self._tensors, x.ids, to, stride=x.stride, offset=x.offset)
            case Normed():
                norm = self._tensors[x.name]
                program.gather(self.columns(x.of), None, to, norm, self._eps)
            case Linear():
                self._product(x, to)
            case Refined():
                hidden = self.columns(x.hidden)
                self.columns(x.of, to)
                program.refine(self._tensors, hidden, to, REFINED)
            case Part():
                program.gather(self.columns(x.of).part(x.begin, x.width), None, to)
            case Joined():
                begin = 0
                for each in x.parts:
                    self.columns(each, to.part(begin, each.width))
                    begin += each.width
            case Last():
                of = x.of.written if isinstance(x.of, Attended) else self.columns(x.of)
                assert of is not None
                program.gather(of, "last_rows", to)
            case Unfolded():
                program.unfold(self.columns(x.of), x.slots, to)
            case Silu():
                rows = self._operand(x.of, x.slots)
                program.join(drafting.SILU, rows, rows, to)
            case Times():
                both = gates(x)
                if both is not None and both.written is None:
                    self._product(both, to, gated=True)
                else:
                    self._join(drafting.PRODUCT, x, to)
            case Sum():
                self._sum(x, to)
            case _:
                raise TypeError(f"rows of {type(x).__name__} are written by whoever makes them")

    def _sum(self, x: Sum, to: Columns) -> None:
        """With the product that one of both may be."""
        for product, other in ((x.first, x.second), (x.second, x.first)):
            match product, other:
                case Linear(written=None), Rows() if product.slots == other.slots:
                    self._product(product, to, residual=self.columns(other))
                    return
        self._join(drafting.SUM, x, to)

    def _join(self, how: int, x: Sum | Times, to: Columns) -> None:
        first, second = (self._operand(each, x.slots) for each in (x.first, x.second))
        self.program.join(how, first, second, to)

    def _operand(self, x: Operand, slots: int) -> drafting.Operand:
        if isinstance(x, Weight):
            return drafting.Operand(None, weights=x.array)
        return drafting.Operand(self.columns(x), repeat=slots // x.slots if x.slots else 1)

    def _product(
        self, x: Linear, to: Columns, residual: Columns | None = None, gated: bool = False
    ) -> None:
        """With the norm before it."""
        at, norm = x.of, None
        if isinstance(at, Normed) and at.written is None:
            norm, at = self._tensors[at.name], at.of
        columns = self.columns(at)
        matrix = self._packed.matrix(self._tensors, x.name, gated=gated)
        self.program.product(
            x.name, matrix, columns, to, norm=norm, eps=self._eps, residual=residual
        )


def rows_of(slots: int) -> str:
    """What the number of rows of such buffers is called."""
    return f"slots{slots}" if slots else "rows"
