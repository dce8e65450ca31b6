"""A program of native operations: made once, run in one call per forward."""

from __future__ import annotations

import ctypes
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from paceline.core.types import LogitArray
from paceline.errors import OutOfMemory
from paceline.native.library import Embeddings, Heads, Layer, Matrix, Tokens, View, library
from paceline.native.packed import GROUP, Packed, Tensors


@dataclass(frozen=True, slots=True)
class Columns:
    """Columns of a buffer."""

    buffer: int
    begin: int
    width: int

    def part(self, begin: int, width: int) -> Columns:
        """Some of them."""
        return Columns(self.buffer, self.begin + begin, width)


class Program:
    """Operations on buffers of rows. What is added runs in that order."""

    def __init__(self, packed: Packed, heads: Heads | None = None) -> None:
        """Begin.

        Args:
            packed: weights, which the program keeps alive.
            heads: of attention, if there is any.

        Raises:
            RuntimeError: there is no library (`native.library`).
        """
        loaded = library()
        if loaded is None:
            raise RuntimeError("native operations are not compiled")
        self._library = loaded
        self._address = loaded.paceline_new()
        self._packed = packed
        self._heads = heads
        self._counts: dict[str, int] = {}
        self._inputs: dict[str, int] = {}
        self._bound: list[npt.NDArray[np.int32]] = []
        self._pointers = (ctypes.c_void_p * 16)()
        self._numbers = (ctypes.c_int64 * 16)()
        self._kept: list[Any] = []
        self._rounded: set[int] = set()
        self._normed: set[int] = set()  # of those, rows that are rounded for a norm
        self._views: dict[tuple[int, int, int], LogitArray] = {}
        self.names: list[str] = []
        """Of the operations, in order."""

    def __del__(self) -> None:
        """Free what the library holds."""
        if getattr(self, "_address", None):
            self._library.paceline_free(self._address)

    def buffer(self, rows: str, width: int, *, rounded: bool = False) -> Columns:
        """A buffer of float32 with as many rows as a run says of `rows`.

        Args:
            rows: see above.
            width: of a row.
            rounded: whether rows are kept as int8 by groups of 64, which takes threads less time to
                hand over; for what attention or a product makes and products of int8 matrices
                without a norm read, nothing else.

        Raises:
            ValueError: rows to be rounded are no whole groups.
        """
        if rounded and width % GROUP:
            raise ValueError(f"rounded rows are whole groups of {GROUP} numbers, not {width}")
        number = self._library.paceline_buffer(self._address, self._count(rows), width, rounded)
        if rounded:
            self._rounded.add(number)
        return Columns(number, 0, width)

    def embed(
        self,
        tensors: Tensors,
        ids: str | Columns,
        to: Columns,
        *,
        stride: int = 1,
        offset: int = 0,
    ) -> None:
        """Rows of the table "embed", and of "embed.extra" behind it.

        Args:
            tensors: the tables.
            ids: entry `stride * row + offset` of an input, or what was picked into a buffer.
            to: where they go.
            stride: see `ids`.
            offset: see `ids`.
        """
        table, scales = tensors["embed.weight"], tensors.get("embed.scale")
        parts = (None, None, table) if scales is None else (table, scales, None)
        rows = [self._packed.keep(part) for part in (*parts, tensors.get("embed.extra"))]
        of = Embeddings(table.shape[1], table.shape[0], *rows)
        number, picked = (self._input(ids), None) if isinstance(ids, str) else (-1, ids)
        at = Tokens(number, stride, offset, _view(picked))
        self._add("embedding", "embed", of, at, _view(to))

    def gather(
        self, at: Columns, which: str | None, to: Columns, norm: Any = None, eps: float = 0.0
    ) -> None:
        """The rows that input `which` names, or all; normed by weights `norm` if given."""
        rows = -1 if which is None else self._input(which)
        parts = (_view(at), rows, at.width, self._packed.keep(norm), eps, _view(to))
        self._add("gather", "gather", *parts)

    def product(
        self,
        name: str,
        matrix: Matrix,
        at: Columns,
        to: Columns,
        *,
        norm: Any = None,
        eps: float = 0.0,
        residual: Columns | None = None,
        behind: tuple[Columns, Any] | None = None,
    ) -> None:
        """See `Step` in `product.hpp`.

        Args:
            name: what a profile calls it.
            matrix: packed.
            at: what is multiplied.
            to: where results go.
            norm: weights of an RMS norm that stands before it; of rows that were rounded for one,
                the same weights again.
            eps: of that norm.
            residual: what is added to results.
            behind: a rounded buffer, and the weights of the norm that results are rounded for:
                they go there too.

        Raises:
            ValueError: rounded rows are for a norm and there is none, or the other way round.
        """
        if at.buffer in self._rounded and (at.buffer in self._normed) != (norm is not None):
            raise ValueError(f"product '{name}' reads rows that are rounded for another")
        views = (_view(at), _view(residual), _view(to))
        normed, weights = behind or (None, None)
        if normed is not None:
            self._normed.add(normed.buffer)
        parts = matrix, self._packed.keep(norm), eps, *views, _view(normed)
        self._add(name, "product", *parts, self._packed.keep(weights))

    def paths(self, longest: int, rows: str) -> None:
        """What rows see: inputs "rows", "tables" and "singles" as in `Plan`."""
        inputs = map(self._input, ("rows", "tables", "singles"))
        self._add("paths", "paths", self._heads, longest, *inputs, self._count(rows))

    def attention(
        self,
        memory: npt.NDArray[Any],
        angles: Any,
        norms: Sequence[Any],
        at: Columns,
        to: Columns,
        whole: npt.NDArray[Any] | None = None,
    ) -> None:
        """Path attention of one layer, over its memory of keys and values.

        Args:
            memory: keys, and values.
            angles: see `Layer` in `path_attention.hpp`.
            norms: of queries and of keys, if there are any.
            at: queries, keys and values of rows.
            to: where their sums go.
            whole: int32 `[1]`; while it holds 0, sums are made for the last row of each sequence
                alone. None makes all.
        """
        self._kept += [memory, whole]
        layer = Layer(
            *(each.ctypes.data for each in memory), *map(self._packed.keep, (angles, *norms))
        )
        asked = None if whole is None else whole.ctypes.data
        self._add("attention", "attention", self._heads, layer, asked, _view(at), _view(to))

    def argmax(self, at: Columns, rows: str) -> Columns:
        """The place of each row's largest number, of equal ones the first; -1 if one is infinite or
        no number.

        Args:
            at: whole rows of logits.
            rows: how many of them, the first ones, are looked at.

        Returns:
            A buffer whose first column holds the places, as the bits of int32.
        """
        to = self.buffer(rows, self._library.paceline_peaks())
        self._add("likeliest", "likeliest", _view(at), at.width, _view(to))
        return to

    @property
    def ran(self) -> int:
        """Operations of the last run."""
        return int(self._library.paceline_ran(self._address))

    def run(
        self,
        counts: Mapping[str, int],
        inputs: Mapping[str, Any],
        threads: int,
        seconds: npt.NDArray[np.float64] | None = None,
        operations: int | None = None,
    ) -> None:
        """Run all operations.

        Args:
            counts: rows of buffers, by the names they were made with.
            inputs: int32 arrays by name.
            threads: to run on.
            seconds: float64 `[operations]`; to each is added what the operation took.
            operations: how many to run, the first ones; None for all.

        Raises:
            OutOfMemory: there is none for so many rows.
            ValueError: an operation refuses its inputs.
        """
        self._bind(counts, inputs)
        measured = None if seconds is None else seconds.ctypes.data
        most = len(self.names) if operations is None else operations
        _check(
            self._library.paceline_run(
                self._address, most, threads, self._numbers, self._pointers, measured
            )
        )

    def begin(
        self, counts: Mapping[str, int], inputs: Mapping[str, Any], threads: int, operations: int
    ) -> None:
        """Begin to run the first so many operations; to be followed by `finish`, and until then by
        nothing else. Arguments as for `run`."""
        self._bind(counts, inputs)
        self._library.paceline_begin(
            self._address, operations, threads, self._numbers, self._pointers
        )

    def finish(self) -> None:
        """Wait until what was begun has run.

        Raises:
            OutOfMemory: there is none for so many rows.
            ValueError: an operation refuses its inputs.
        """
        _check(self._library.paceline_finish(self._address))

    def read(self, of: Columns, rows: int) -> LogitArray:
        """float32 `[rows, width]`, a view of a whole buffer, not rounded, that the next run
        overwrites."""
        if not rows:
            return np.zeros((0, of.width), dtype=np.float32)
        address = self._library.paceline_read(self._address, of.buffer)
        key = (of.buffer, address, rows)  # another buffer may have lain there before
        if key not in self._views:
            if len(self._views) > 256:  # buffers have moved
                self._views.clear()
            numbers: Any = (ctypes.c_float * (rows * of.width)).from_address(address)
            self._views[key] = np.frombuffer(numbers, dtype=np.float32).reshape(rows, of.width)
        return self._views[key]

    def _bind(self, counts: Mapping[str, int], inputs: Mapping[str, Any]) -> None:
        """Put what a run is given where the library reads it."""
        for name, index in self._inputs.items():
            values = inputs[name]
            bound = self._bound[index]
            if bound.size < len(values):
                bound = self._bound[index] = np.empty(2 * len(values), dtype=np.int32)
                self._pointers[index] = bound.ctypes.data
            bound[: len(values)] = values
        for name, index in self._counts.items():
            self._numbers[index] = counts[name]

    def _add(self, name: str, kind: str, *arguments: Any) -> None:
        """One more operation."""
        getattr(self._library, f"paceline_{kind}")(self._address, *arguments)
        self.names.append(name)

    def _input(self, name: str) -> int:
        """The index of an input."""
        if name not in self._inputs:
            self._inputs[name] = len(self._inputs)
            self._bound.append(np.empty(0, dtype=np.int32))
        return self._inputs[name]

    def _count(self, name: str) -> int:
        """The index of a number of rows."""
        return self._counts.setdefault(name, len(self._counts))


def _check(error: bytes | None) -> None:
    """Raise what went wrong."""
    if error == b"memory":
        raise OutOfMemory("no memory for a forward of this size: send fewer or shorter requests")
    if error is not None:
        raise ValueError(error.decode())


def _view(columns: Columns | None) -> View:
    return View(-1, 0) if columns is None else View(columns.buffer, columns.begin)
