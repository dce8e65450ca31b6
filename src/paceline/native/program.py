"""Program of native kernels: built once, run in one call per forward."""

from __future__ import annotations

import ctypes
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from struct import Struct
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from paceline.core.types import IntArray, LogitArray
from paceline.errors import OutOfMemory
from paceline.native.blocks import GROUP
from paceline.native.library import (
    CConvolution,
    CHeads,
    CLayer,
    CMatrix,
    CPart,
    CRouter,
    CStateHeads,
    CView,
    library,
)
from paceline.native.packed import Packed

# Activations of a gate, in C++.
GATES = {"silu": 1, "gelu": 2, "clamped": 3, "relu2": 4}

# Columns that `pick` fills.
PICKED = 4

_KEY = 16
_MOST_INPUTS = 80  # of a program: squares of 8 patches a side have 64

# Temperature and padding, after the key.
_SHARPNESS = Struct("<f4x")

# Elementwise operations of `join`.
SUM, PRODUCT, SILU, TANH, GATE, GATE_ROW, GELU, RELU2, EXACT_GELU = range(9)

# Which rows `attention` computes, and how far those of `runs` see; `Asked` and `Upto` in C++.
ALL, LAST, LENT, NONE = range(4)
ITSELF, BLOCK, CONTEXT = range(3)


@dataclass(frozen=True, slots=True)
class Columns:
    """Column range of a buffer."""

    buffer: int
    begin: int
    width: int

    def part(self, begin: int, width: int) -> Columns:
        return Columns(self.buffer, self.begin + begin, width)


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


class Program:
    """Sequence of operations on row buffers, run in the order of addition."""

    def __init__(self, packed: Packed, heads: CHeads | None = None, longest: int = 0) -> None:
        """Start empty.

        Args:
            packed: weights, kept alive by the program.
            heads: attention shape, if any.
            longest: positions are below it.

        Raises:
            RuntimeError: there is no library (`native.library`).
        """
        loaded = library()
        if loaded is None:
            raise RuntimeError("native operations are not compiled")
        self._library = loaded
        self._address = loaded.paceline_new()
        self.packed = packed
        self._heads, self.longest = heads, longest
        self._counts: dict[str, int] = {}
        self._inputs: dict[str, int] = {}
        self._bound: list[npt.NDArray[np.int32]] = []
        self._pointers = (ctypes.c_void_p * _MOST_INPUTS)()
        self._numbers = (ctypes.c_int64 * 16)()
        self._kept: list[Any] = []
        self._views: dict[tuple[int, int, int], LogitArray] = {}
        # Operations in order.
        self.names: list[str] = []

    def __del__(self) -> None:
        if getattr(self, "_address", None):
            self._library.paceline_free(self._address)

    def buffer(self, rows: str, width: int, *, rounded: bool = False) -> Columns:
        """Add a float32 buffer with the row count that a run gives under the name `rows`.

        Args:
            rows: name of the count.
            width: of a row.
            rounded: store activations quantized in groups of 32: written by attention or a matmul,
                read by matmuls with quantized matrices only.

        Raises:
            ValueError: quantized rows are no whole groups.
        """
        if rounded and width % GROUP:
            raise ValueError(f"rounded rows are whole groups of {GROUP} numbers, not {width}")
        number = self._library.paceline_buffer(self._address, self._count(rows), width, rounded)
        return Columns(number, 0, width)

    def load(self, name: str, to: Columns) -> None:
        """Copy an input into a buffer: float32 viewed as int32."""
        self._add("load", "load", self._input(name), to.width, _view(to))

    def embed(
        self,
        table: CMatrix,
        ids: str | Columns,
        to: Columns,
        *,
        extra: LogitArray | None = None,
        scale: float = 1.0,
    ) -> None:
        """Embed token ids: rows of a matrix times `scale`, or of `extra` from its outputs on.

        Args:
            table: `[vocabulary, width]`.
            ids: input name, or a buffer that `pick` filled.
            to: destination.
            extra: float32 `[m, width]`.
            scale: of the table's rows.
        """
        number, picked = (self._input(ids), None) if isinstance(ids, str) else (-1, ids)
        at = number, _view(picked)
        self._add("embedding", "embed", table, self.packed.keep(extra), scale, *at, _view(to))

    def gather(
        self,
        at: Columns,
        which: str | None,
        to: Columns,
        norm: Any = None,
        eps: float = 0.0,
        residual: Columns | None = None,
        heads: int = 1,
    ) -> None:
        """Copy the rows that `which` names, or all; norm each head (RMS), then add `residual`.

        Row -1 is zeros, which are not normed.

        Heads share the weights of the norm, unless there are some for each.
        """
        rows = -1 if which is None else self._input(which)
        views = _view(residual), _view(to)
        kept, own = self.packed.keep(norm), norm is not None and norm.size == at.width
        self._add("gather", "gather", _view(at), rows, at.width, kept, eps, heads, own, *views)

    def layer_norm(
        self, at: Columns, to: Columns, weights: LogitArray, bias: LogitArray, eps: float
    ) -> None:
        """Norm rows less their mean, then add a bias."""
        kept = map(self.packed.keep, (weights, bias))
        self._add("gather", "layer_norm", _view(at), at.width, *kept, eps, _view(to))

    def scatter(self, at: Columns, which: str, to: Columns) -> None:
        """Add rows to those of `to` that input `which` names, each at most once."""
        self._add("scatter", "scatter", _view(at), self._input(which), at.width, _view(to))

    def product(
        self,
        name: str,
        matrices: Sequence[CMatrix],
        at: Columns,
        to: Columns,
        *,
        norm: Any = None,
        eps: float = 0.0,
        scale: float = 1.0,
        residual: Columns | None = None,
        gate: int = 0,
    ) -> None:
        """Add a matmul: `residual + scale * norm(x) @ matrices`, results side by side.

        Args:
            name: in profiles.
            matrices: at most three.
            at: input rows.
            to: destination.
            norm: weights of an RMS norm of the input.
            eps: of that norm.
            scale: of the results.
            residual: added to the results.
            gate: of `GATES`, or 0: results are the gated first matrix times the second.
        """
        if gate and len(matrices) != 2:
            raise ValueError(f"{name}: a gate takes two matrices, not {len(matrices)}")
        parts = (CMatrix * len(matrices))(*matrices)
        views = (_view(at), _view(residual), _view(to))
        kept = self.packed.keep(norm)
        self._add(name, "product", parts, len(matrices), gate, scale, kept, eps, *views)

    def route(
        self,
        name: str,
        scores: Columns,
        to: Columns,
        *,
        used: int,
        sum_to_one: bool,
        sigmoid: bool = False,
        groups: tuple[int, int] = (1, 1),
        factor: float = 1.0,
        norm: Any = None,
        offset: Any = None,
        eps: float = 0.0,
    ) -> None:
        """Add the weights of experts from their scores; see `models.ops.Experts`."""
        vectors = map(self.packed.keep, (norm, offset))
        router = CRouter(used, sum_to_one, sigmoid, *groups, factor, eps, *vectors)
        self._add(name, "route", router, _view(scores), to.width, _view(to))

    def mix(
        self,
        name: str,
        experts: Sequence[Sequence[CMatrix]],
        at: Columns,
        weights: Columns,
        to: Columns,
        *,
        activation: int,
        residual: Columns | None = None,
        every: bool = False,
    ) -> None:
        """Add a mixture: `residual +` the weighted sum of what the experts in use make of a row.

        Args:
            name: in profiles.
            experts: gates, if any, then "up", then "down", each by expert.
            at: input rows.
            weights: `[rows, experts]`, as `route` leaves them.
            to: destination, not the residual.
            activation: of `GATES`.
            residual: added.
            every: read all experts for all rows, to the same bits.
        """
        parts = [matrix for matrices in experts for matrix in matrices]
        views = map(_view, (at, weights, residual, to))
        packed, count = (CMatrix * len(parts))(*parts), len(experts[0])
        gated = len(experts) == 3
        self._add(name, "mix", packed, count, gated, activation, every, *views)

    def paths(self, rows: str, of: str = "") -> None:
        """Set the visible keys of rows: inputs "rows", "tables" and "singles", named after `of`."""
        inputs = (self._input(f"{of}{each}") for each in ("rows", "tables", "singles"))
        self._add("paths", "paths", self._heads, self.longest, *inputs, self._count(rows))

    def attention(
        self,
        memory: npt.NDArray[Any],
        angles: Any,
        vectors: Sequence[Any],
        at: Columns,
        to: Columns,
        asked: int = ALL,
        heads: CHeads | None = None,
    ) -> None:
        """Add attention of one layer over its keys and values.

        Args:
            memory: keys, and values.
            angles: rotary table.
            vectors: norms of queries and of keys, sinks, and factors of queries by position,
                each if any.
            at: queries of the rows, and their keys and values unless these are `LENT`; of `NONE`
                keys and values alone.
            to: destination.
            asked: `ALL`, `LAST` (only the last row of each sequence is computed), `LENT` (nothing
                is stored) or `NONE` (nothing else is done).
            heads: shape, if not the program's.
        """
        self._kept.append(memory)
        layer = CLayer(
            *(each.ctypes.data for each in memory), *map(self.packed.keep, (angles, *vectors))
        )
        self._add(
            "attention", "attention", heads or self._heads, layer, asked, _view(at), _view(to)
        )

    def recurrences(self, taps: int) -> None:
        """Set the states of rows: inputs "states" and "parents", by "sequences"."""
        inputs = map(self._input, ("states", "parents"))
        self._add("states", "recurrences", *inputs, self._count("sequences"), taps)

    def convolve(
        self,
        weights: LogitArray,
        tail: int,
        at: Columns,
        records: Columns,
        to: Columns,
        *,
        activated: bool = True,
        bias: LogitArray | None = None,
    ) -> None:
        """Add a causal convolution of each column.

        Args:
            weights: float32 `[taps, width]`.
            tail: place of its last rows in a state.
            at: input rows.
            records: where those of nodes go.
            to: destination.
            activated: SiLU comes after.
            bias: float32 `[width]`, where sums begin.
        """
        vectors = map(self.packed.keep, (weights, bias))
        shape = CConvolution(weights.shape[1], tail, *vectors, activated)
        self._add("convolve", "convolve", shape, *map(_view, (at, records, to)))

    def scan(
        self, name: str, of: CStateHeads, at: Columns, gates: Columns, records: Columns, to: Columns
    ) -> None:
        """Add a scan, or a gated delta rule, which skips nothing; rows and gates are changed.

        Args:
            name: in profiles.
            of: its shape and vectors.
            at: values, keys and queries; of a delta rule in the opposite order.
            gates: steps twice; of a delta rule strengths and decays.
            records: where those of nodes go.
            to: destination.
        """
        self._add(name, "scan", of, *map(_view, (at, gates, records, to)))

    def argmax(self, at: Columns, rows: str) -> Columns:
        """Add the argmax of logit rows: the first of equal ones; -1 if a number is not finite.

        Args:
            at: whole rows of logits.
            rows: count name; the first rows are read.

        Returns:
            A buffer whose first column holds the indices as int32 bits.
        """
        to = self.buffer(rows, self._library.paceline_peaks())
        self._add("argmax", "argmax", _view(at), at.width, _view(to))
        return to

    def join(self, how: int, first: Operand, second: Operand, to: Columns) -> None:
        """Combine rows elementwise."""
        self._add("join", "join", how, self._part(first), self._part(second), to.width, _view(to))

    def fold(self, at: Columns, width: int, to: Columns) -> None:
        """Write the same numbers as rows of another width, `width` before."""
        self._add("fold", "fold", _view(at), width, to.width, _view(to))

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
        kept = self.packed.keep(ids.astype("int32"))
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

        `logits` are a preview of those that `head` makes of `hidden`.
        """
        self._add("refine", "refine", head, _view(hidden), logits.width, best, _view(logits))

    def clustered(
        self,
        head: CMatrix,
        tokens: IntArray,
        best: int,
        hidden: Columns,
        scores: Columns,
        logits: Columns,
    ) -> None:
        """Make the logits of the `best` clusters by score; those of others are minus infinity.

        `tokens` are those of each cluster, `[clusters, size]`; `head` has their rows one cluster
        behind another, each in whole tiles.
        """
        kept = self.packed.keep(tokens.astype("int32"))
        at = *tokens.shape, kept, best, _view(hidden), _view(scores), _view(logits)
        self._add("clusters", "clustered", head, *at)

    def runs(
        self, count: str, first: int = 0, slots: int = 0, upto: int = ITSELF, of: str = ""
    ) -> None:
        """Set the visible keys of the next attention: each sequence, from its first key.

        Inputs are "sequences" and "tables" as in `paceline_runs`, named after `of`; `count` names
        their number. Rows see `upto` themselves (`ITSELF`), the last of the `slots` (`BLOCK`), or
        the newest context row (`CONTEXT`).
        """
        inputs = self._input(f"{of}sequences"), self._input(f"{of}tables")
        at = (*inputs, self._count(count), first, slots, upto)
        self._add("paths", "runs", self._heads, self.longest, *at)

    def attend_slots(self, at: Columns, slots: int, to: Columns) -> None:
        """Attend among the `slots` rows of each sequence."""
        self._add("attention", "attend_slots", self._heads, slots, _view(at), _view(to))

    @property
    def ran(self) -> int:
        """Number of operations in the last run."""
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
            counts: row counts by name.
            inputs: int32 arrays by name.
            threads: to run on.
            seconds: float64 `[operations]`, increased by the time of each operation.
            operations: run only the first ones; None for all.

        Raises:
            OutOfMemory: no memory for so many rows.
            ValueError: an operation rejects its inputs.
        """
        self._bind(counts, inputs)
        measured = None if seconds is None else seconds.ctypes.data
        self._run(0, len(self.names) if operations is None else operations, threads, measured)

    def go_on(self, operation: int, threads: int) -> None:
        """Run one operation more, on what the last run was given and left; errors as of `run`."""
        self._run(operation, operation + 1, threads, None)

    def _run(self, begin: int, end: int, threads: int, measured: int | None) -> None:
        given = self._numbers, self._pointers, measured
        _check(self._library.paceline_run(self._address, begin, end, threads, *given))

    def read(self, of: Columns, rows: int) -> LogitArray:
        """Return float32 `[rows, width]`, a view of a buffer that the next run overwrites."""
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
        getattr(self._library, f"paceline_{kind}")(self._address, *arguments)
        self.names.append(name)

    def _part(self, of: Operand) -> CPart:
        weights = of.weights
        period = 1 if weights is None or weights.ndim == 1 else len(weights)
        return CPart(_view(of.rows), of.repeat, period, self.packed.keep(weights))

    def _input(self, name: str) -> int:
        if name not in self._inputs:
            self._inputs[name] = len(self._inputs)
            self._bound.append(np.empty(0, dtype=np.int32))
        return self._inputs[name]

    def _count(self, name: str) -> int:
        return self._counts.setdefault(name, len(self._counts))


def noise_records(keys: bytes, temperature: float, depth: int) -> npt.NDArray[np.int32]:
    """Return int32 `[depth, 6]`, `Noise` of `drafting/drafting.hpp`; zeros without a key."""
    behind = _SHARPNESS.pack(1 / temperature)
    known = [keys[at : at + _KEY] + behind for at in range(0, _KEY * depth, _KEY) if at < len(keys)]
    records = b"".join(known).ljust(depth * (_KEY + len(behind)), b"\0")
    return np.frombuffer(records, dtype=np.int32).reshape(depth, -1)


def _check(error: bytes | None) -> None:
    if error == b"memory":
        raise OutOfMemory("no memory for a forward of this size: send fewer or shorter requests")
    if error is not None:
        raise ValueError(error.decode())


def _view(columns: Columns | None) -> CView:
    return CView(-1, 0) if columns is None else CView(columns.buffer, columns.begin)
