"""What a network computes, as expressions that nobody has worked out yet.

So what is done to rows next is known when they are written: norms join the product behind them,
sums and gates the one before, and of rows that only their last ones are read of, only those are
computed.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np
import numpy.typing as npt

from paceline.native.program import Columns
from paceline.types import LogitArray

LANES = 16
"""Numbers that operations take together."""


@dataclass(eq=False)
class Rows:
    """An expression.

    Attributes:
        slots: draft rows of a sequence; 0 for context rows.
        width: numbers of a row.
        written: where they are, once the program computes them.
    """

    slots: int
    width: int
    written: Columns | None = None

    def __add__(self, other: Operand) -> Rows:
        """Number by number."""
        return Sum(*_both(self, other), first=self, second=other)

    __radd__ = __add__

    def __mul__(self, other: Operand) -> Rows:
        """Number by number."""
        return Times(*_both(self, other), first=self, second=other)

    __rmul__ = __mul__


@dataclass(frozen=True, eq=False)
class Weight:
    """A parameter, `[width]` or `[slots, width]`, for all rows."""

    array: LogitArray


Operand: TypeAlias = Rows | Weight


@dataclass(eq=False, kw_only=True)
class Embedded(Rows):
    """Embeddings of token ids, see `Program.embed`."""

    ids: str | Columns
    stride: int = 1
    offset: int = 0


@dataclass(eq=False, kw_only=True)
class Normed(Rows):
    """RMS norm."""

    of: Rows
    name: str


@dataclass(eq=False, kw_only=True)
class Linear(Rows):
    """Product with a matrix."""

    of: Rows
    name: str


@dataclass(eq=False, kw_only=True)
class Refined(Rows):
    """Logits, of which the head makes the best few exact."""

    of: Rows
    hidden: Rows


@dataclass(eq=False, kw_only=True)
class Silu(Rows):
    """x sigmoid(x)."""

    of: Rows


@dataclass(eq=False, kw_only=True)
class Part(Rows):
    """Some columns."""

    of: Rows
    begin: int


@dataclass(eq=False, kw_only=True)
class Joined(Rows):
    """Parts side by side."""

    parts: tuple[Rows, ...]


@dataclass(eq=False, kw_only=True)
class Last(Rows):
    """Of the context rows of each sequence the last, as a draft row."""

    of: Rows


@dataclass(eq=False, kw_only=True)
class Attended(Rows):
    """What attention of context rows makes, if anybody reads more of it than the last rows.

    Attributes:
        whole: int32 `[1]`, whether somebody does: attention looks there when it runs.
    """

    whole: npt.NDArray[np.int32]


@dataclass(eq=False, kw_only=True)
class Unfolded(Rows):
    """Slots of what stands side by side in a row."""

    of: Rows


@dataclass(eq=False, kw_only=True)
class Sum(Rows):
    """Of rows and rows or weights."""

    first: Rows
    second: Operand


@dataclass(eq=False, kw_only=True)
class Times(Rows):
    """Of rows and rows or weights, number by number."""

    first: Rows
    second: Operand


def join(parts: Sequence[Rows]) -> Rows:
    """Side by side; what was split before is put together again."""
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
    """Some columns; of what was joined, that which they came from."""
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
    """The product whose upper half gates its lower one, if `x` is that."""
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
    """Slots and width of what they come to."""
    if isinstance(second, Rows):
        return max(first.slots, second.slots), first.width
    slots = len(second.array) if second.array.ndim > 1 else 1
    return (max(first.slots, slots) if first.slots else 0), first.width
