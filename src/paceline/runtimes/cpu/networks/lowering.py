"""Lazy expressions for drafter networks, fused when they are emitted.

A norm joins the matmul after it; sums and gates join the matmul before it. If only the last rows
are read, only those are computed.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

from paceline.core.types import LogitArray
from paceline.native import draft_program
from paceline.native.draft_program import DraftProgram
from paceline.native.program import GATES, Columns
from paceline.networks.head_preview import REFINED
from paceline.runtimes.cpu.networks.weights import NetworkWeights

# Floats of a vector register.
LANES = 16


@dataclass(eq=False)
class Rows:
    """An expression.

    Attributes:
        slots: draft rows per sequence; 0 for context rows.
        width: of a row.
        written: columns that hold it, once emitted.
    """

    slots: int
    width: int
    written: Columns | None = None

    def __add__(self, other: Operand) -> Rows:
        return Sum(*_both(self, other), first=self, second=other)

    __radd__ = __add__

    def __mul__(self, other: Operand) -> Rows:
        return Times(*_both(self, other), first=self, second=other)

    __rmul__ = __mul__


@dataclass(frozen=True, eq=False)
class Weight:
    """A parameter, `[width]` or `[slots, width]`, for all rows."""

    array: LogitArray


Operand: TypeAlias = Rows | Weight


@dataclass(eq=False, kw_only=True)
class Embedded(Rows):
    ids: str | Columns
    stride: int = 1
    offset: int = 0


@dataclass(eq=False, kw_only=True)
class Normed(Rows):
    of: Rows
    name: str


@dataclass(eq=False, kw_only=True)
class Linear(Rows):
    of: Rows
    name: str


@dataclass(eq=False, kw_only=True)
class Rescored(Rows):
    """Head preview logits, of which the head makes the top k exact."""

    of: Rows
    hidden: Rows


@dataclass(eq=False, kw_only=True)
class Silu(Rows):
    of: Rows


@dataclass(eq=False, kw_only=True)
class Part(Rows):
    of: Rows
    begin: int


@dataclass(eq=False, kw_only=True)
class Joined(Rows):
    parts: tuple[Rows, ...]


@dataclass(eq=False, kw_only=True)
class Last(Rows):
    """The last context row of each sequence, as a draft row."""

    of: Rows


@dataclass(eq=False, kw_only=True)
class Attended(Rows):
    """Attention of context rows.

    Attributes:
        whole: int32 `[1]`, read at run time: are more than the last rows needed?
    """

    whole: npt.NDArray[np.int32]


@dataclass(eq=False, kw_only=True)
class Unfolded(Rows):
    of: Rows


@dataclass(eq=False, kw_only=True)
class Sum(Rows):
    first: Rows
    second: Operand


@dataclass(eq=False, kw_only=True)
class Times(Rows):
    first: Rows
    second: Operand


def join(parts: Sequence[Rows]) -> Rows:
    """Concatenate columns; parts of one expression become that expression again."""
    out: list[Rows] = []
    for each in parts:
        if out and isinstance(each, Part) and isinstance(out[-1], Part):
            last = out[-1]
            if last.of is each.of and last.begin + last.width == each.begin:
                out[-1] = part(each.of, last.begin, last.width + each.width)
                continue
        out.append(each)
    if len(out) == 1:
        return out[0]
    width = sum(each.width for each in out)
    return Joined(out[0].slots, width, parts=tuple(out))


def part(of: Rows, begin: int, width: int) -> Rows:
    """Take columns, looking through concatenations."""
    if (begin, width) == (0, of.width):
        return of
    if isinstance(of, Joined):
        at = 0
        for each in of.parts:
            if (at, each.width) == (begin, width):
                return each
            at += each.width
    return Part(of.slots, width, of=of, begin=begin)


def gates(x: Rows) -> Linear | None:
    """Return the matmul whose upper half gates its lower one, if `x` is that."""
    if not isinstance(x, Times) or not isinstance(x.first, Silu):
        return None
    gate, other = x.first.of, x.second
    if not isinstance(gate, Part) or not isinstance(other, Part):
        return None
    both = gate.of
    halves = (gate.begin, other.begin, 2 * x.width) == (0, x.width, both.width)
    fits = halves and both is other.of and x.width % LANES == 0
    return both if fits and isinstance(both, Linear) else None


def _both(first: Rows, second: Operand) -> tuple[int, int]:
    if isinstance(second, Rows):
        return max(first.slots, second.slots), first.width
    slots = len(second.array) if second.array.ndim > 1 else 1
    return (max(first.slots, slots) if first.slots else 0), first.width


class Writing:
    """Emits expressions into a program.

    Buffers have "rows" context rows, or "slots1", "slots2", ... draft rows per sequence.
    """

    def __init__(self, program: DraftProgram, weights: NetworkWeights, norm_eps: float) -> None:
        self.program = program
        self._weights = weights
        self._eps = norm_eps
        self._slots = {1}

    @property
    def operations(self) -> int:
        """Number of operations so far."""
        return len(self.program.names)

    def columns(self, x: Rows, to: Columns | None = None) -> Columns:
        """Emit `x` if needed and return its columns; `to` is the wanted destination, if any."""
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
        self._slots.add(slots)
        return self.program.buffer(rows_of(slots), width)

    def counts(self, sequences: int, rows: int = 0) -> dict[str, int]:
        """Return row counts of a run with so many sequences (or branches) and context rows."""
        return {rows_of(each): each * sequences if each else rows for each in self._slots}

    def read(self, of: Columns, rows: int) -> LogitArray:
        """Return float32 `[rows, width]` of the last run, a view that the next run overwrites."""
        return self.program.read(of, rows)

    def _write(self, x: Rows, to: Columns) -> None:
        program = self.program
        match x:
            case Embedded():
                [table] = self._weights.matrices("embed")
                program.embed(table, x.ids, to, stride=x.stride, offset=x.offset)
            case Normed():
                norm = self._weights.vector(x.name)
                program.gather(self.columns(x.of), None, to, norm, self._eps)
            case Linear():
                self._product(x, to)
            case Rescored():
                hidden = self.columns(x.hidden)
                self.columns(x.of, to)
                [head] = self._weights.matrices("head")
                program.rescore_top_k(head, hidden, to, REFINED)
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
                program.join(draft_program.SILU, rows, rows, to)
            case Times():
                both = gates(x)
                if both is not None and both.written is None:
                    self._product(both, to, gated=True)
                else:
                    self._join(draft_program.PRODUCT, x, to)
            case Sum():
                self._sum(x, to)
            case _:
                raise TypeError(f"rows of {type(x).__name__} are written where they are made")

    def _sum(self, x: Sum, to: Columns) -> None:
        for product, other in ((x.first, x.second), (x.second, x.first)):
            match product, other:
                case Linear(written=None), Rows() if product.slots == other.slots:
                    self._product(product, to, residual=self.columns(other))
                    return
        self._join(draft_program.SUM, x, to)

    def _join(self, how: int, x: Sum | Times, to: Columns) -> None:
        first, second = (self._operand(each, x.slots) for each in (x.first, x.second))
        self.program.join(how, first, second, to)

    def _operand(self, x: Operand, slots: int) -> draft_program.Operand:
        if isinstance(x, Weight):
            return draft_program.Operand(None, weights=x.array)
        return draft_program.Operand(self.columns(x), repeat=slots // x.slots if x.slots else 1)

    def _product(
        self, x: Linear, to: Columns, residual: Columns | None = None, gated: bool = False
    ) -> None:
        at, norm = x.of, None
        if isinstance(at, Normed) and at.written is None:
            norm, at = self._weights.vector(at.name), at.of
        columns = self.columns(at)
        self.program.product(
            x.name,
            self._weights.matrices(x.name, halves=gated),
            columns,
            to,
            norm=norm,
            eps=self._eps,
            residual=residual,
            gate=GATES["silu"] if gated else 0,
        )


def rows_of(slots: int) -> str:
    """Return the name of a row count."""
    return f"slots{slots}" if slots else "rows"


# What expressions (`native_network_rows`) come to in the last context row of every sequence.


class Lasts:
    """Rewrites expressions of context rows to the last row of each sequence.

    Subexpressions that are already emitted are gathered instead.
    """

    def __init__(self) -> None:
        self._known: dict[Rows, Rows] = {}

    def __call__(self, x: Rows) -> Rows:
        if x not in self._known:
            again = self._again(x) if x.written is None else {}
            kept = {key: each for key, each in vars(x).items() if key not in again}
            self._known[x] = (
                type(x)(**{**kept, **again, "slots": 1}) if again else Last(1, x.width, of=x)
            )
        return self._known[x]

    def _again(self, x: Rows) -> dict[str, Any]:
        # The same of last rows; None if it cannot be made of them.
        match x:
            case Linear() | Normed() | Silu():
                return {"of": self(x.of)}
            case Part() if x.of.written is None:
                return {"of": self(x.of)}
            case Joined():
                return {"parts": tuple(map(self, x.parts))}
            case Sum() | Times():
                second = x.second
                other = self(second) if isinstance(second, Rows) else second
                return {"first": self(x.first), "second": other}
        return {}
