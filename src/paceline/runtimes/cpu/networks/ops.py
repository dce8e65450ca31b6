"""`networks.ops.Ops` on the CPU: records a network's operations in a native program.

Drafts do not depend on batch composition.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import NamedTuple

import numpy as np

from paceline.core.types import LogitArray
from paceline.errors import RuntimeUnavailable
from paceline.native import draft_program
from paceline.native.draft_program import DraftProgram, Operand
from paceline.native.library import KV_DTYPES, CHeads, CMatrix
from paceline.native.packed import Packed
from paceline.native.program import GATES, Columns
from paceline.networks.base import Geometry, Network
from paceline.networks.head_preview import REFINED, SCREEN
from paceline.networks.ops import Ops, Sight
from paceline.networks.runner import Tail
from paceline.runtimes.cpu import ops
from paceline.runtimes.cpu.networks.weights import NetworkWeights
from paceline.runtimes.cpu.ops import Recorder, nothing
from paceline.runtimes.kv_cache import BLOCK, CHUNK, BlockPool, PagedCache


def pool_for(network: Network, tokens: int, precision: str) -> BlockPool:
    """Reserve keys and values for `tokens` of all sequences; fp32 only if matrices are.

    Raises:
        MemoryError: there is no memory for them.
    """
    shape = network.geometry
    return BlockPool(
        max(network.layers, 1),
        shape.kv_heads,
        shape.head_dim,
        tokens // BLOCK,
        keep=0,
        dtype=np.float32 if precision == "fp32" else np.float16,
    )


@dataclass(eq=False, slots=True)
class NetworkCache:
    """Context rows of one sequence.

    Attributes:
        paged: keys and values of the network's layers.
        tail: last context tokens.
        branched: rows of branches stored after the context until the next draft.
        left: rows that a window has left, in front of those in `paged`.
        lent: blocks of the target that hold the context, where the network reads them.
    """

    paged: PagedCache
    tail: Tail
    branched: int = 0
    left: int = 0
    lent: Sequence[int] = ()

    def slide(self, reach: int) -> None:
        """Release the blocks in front of a window of `reach` rows; 0 keeps all.

        Sums over keys are cut by `CHUNK`: whole ones go, so that no bit changes.
        """
        gone = max(0, self.paged.length - reach + 1) // CHUNK * CHUNK if reach else 0
        self.paged.drop_first(gone // BLOCK)
        self.left += gone

    def prune(self) -> None:
        """Drop all branches and release their blocks."""
        if self.branched:
            self.paged.truncate(self.paged.length)
            self.branched = 0


class NetworkRows(ops.Rows):
    """Context rows, or draft rows: so many `slots` per sequence. `+` and `*` work elementwise."""

    _owner: NativeOps

    def __init__(
        self, owner: NativeOps, slots: int, width: int, record: Callable[[Columns], None] = nothing
    ) -> None:
        super().__init__(owner, owner.count(slots), width, record)
        self.slots = slots

    def __add__(self, other: NetworkRows | Operand) -> NetworkRows:
        return self._owner.join(draft_program.SUM, self, other)

    __radd__ = __add__

    def __mul__(self, other: NetworkRows | Operand) -> NetworkRows:
        return self._owner.join(draft_program.PRODUCT, self, other)

    __rmul__ = __mul__


class Tokens(NamedTuple):
    """Token ids of `slots` draft rows per sequence, or of context rows, `window` of each."""

    ids: str | Columns
    slots: int = 0
    window: int = 1


def last_rows(count: int) -> str:
    """Return the name of the input with the last `count` context rows of each sequence."""
    return f"last_rows{count}"


def rows_of(slots: int) -> str:
    """Return the name of a row count."""
    return f"slots{slots}" if slots else "rows"


class NativeOps(Recorder):
    """Records a network. Implements `networks.ops.Ops`. Attention is recorded at once."""

    program: DraftProgram

    def __init__(
        self,
        network: Network,
        weights: NetworkWeights,
        packed: Packed,
        pool: BlockPool,
        angles: LogitArray,
        lent: BlockPool | None = None,
        *,
        previewed: bool = False,
    ) -> None:
        """Start a program.

        Args:
            network: to record.
            weights: of the network.
            packed: keeps what programs read.
            pool: keys and values of the network's layers.
            angles: `[positions, head_dim]` cosines, then sines.
            lent: keys and values of the target, if the network may read them.
            previewed: use the head preview, if the network has one.
        """
        shape = network.geometry
        heads = _heads(shape, pool, network.reach)
        super().__init__(DraftProgram(packed, heads, len(angles)))
        self._shape = shape
        self._weights = weights
        self._previewed = previewed and weights.previews
        self._pool = pool
        self._angles = angles
        self._lent = lent
        self._further = 0  # position of the rows that attended last, behind the context
        self._slots = {1}
        self._drafted = [0] * network.layers
        self._seen: tuple[int, int, bool] | None = None
        # Whether rows of a step see one another both ways.
        self.blocks = False
        # Operations until all context rows are in the caches.
        self.taken_in = 0

    @property
    def operations(self) -> int:
        """Number of operations so far."""
        return len(self.program.names)

    @property
    def drafted(self) -> int:
        """Draft rows written so far, of each sequence."""
        return max(self._drafted, default=0)

    def buffer(self, slots: int, width: int) -> Columns:
        """Add a buffer that is never used again for other rows."""
        return self.program.buffer(self.count(slots), width)

    def given(self, name: str, slots: int, width: int) -> NetworkRows:
        """Return the rows of float32 input `name`."""
        return NetworkRows(self, slots, width, lambda to: self.program.load(name, to))

    def count(self, slots: int) -> str:
        """Return the name of a row count, which runs are given from now on."""
        self._slots.add(slots)
        return rows_of(slots)

    def counts(self, sequences: int, rows: int = 0) -> dict[str, int]:
        """Return row counts of a run with so many sequences (or branches) and context rows."""
        return {rows_of(each): each * sequences if each else rows for each in self._slots}

    def weight(self, name: str) -> Operand:
        return Operand(None, weights=self._weights.vector(name))

    def norm(self, x: NetworkRows, name: str) -> NetworkRows:
        weights, eps = self._weights.vector(name), self._shape.norm_eps
        return NetworkRows(
            self,
            x.slots,
            x.width,
            lambda to: self.program.gather(x.columns(), None, to, weights, eps),
        )

    def linear(
        self, x: NetworkRows, name: str, *, norm: str | None = None, plus: NetworkRows | None = None
    ) -> NetworkRows:
        assert plus is None or plus.slots == x.slots, f"{name}: context and draft rows are summed"
        matrices = self._weights.matrices(name)
        width = sum(matrix.outputs for matrix in matrices)
        return self._product(x, name, matrices, width, norm, plus)

    def gated(self, x: NetworkRows, name: str, *, norm: str | None = None) -> NetworkRows:
        matrices = self._weights.matrices(name, halves=True)
        return self._product(x, name, matrices, matrices[0].outputs, norm, gate=GATES["silu"])

    def silu(self, x: NetworkRows) -> NetworkRows:
        return self.join(draft_program.SILU, x, x)

    def lstm_gate(self, gate: NetworkRows, x: NetworkRows) -> NetworkRows:
        return self.join(draft_program.LSTM_GATE, gate, x)

    def concat(self, parts: Sequence[NetworkRows]) -> NetworkRows:
        def record(to: Columns) -> None:
            begin = 0
            for each in parts:
                each.place(to.part(begin, each.width), out)
                begin += each.width

        out = NetworkRows(self, parts[0].slots, sum(each.width for each in parts), record)
        return out

    def split(self, x: NetworkRows, sizes: Sequence[int]) -> list[NetworkRows]:
        columns, ends = x.columns(), accumulate(sizes)
        return [
            NetworkRows(self, x.slots, size).place(columns.part(end - size, size), x)
            for size, end in zip(sizes, ends, strict=True)
        ]

    def embed(self, tokens: Tokens) -> NetworkRows:
        return self._embed(tokens, 0)

    def embed_windows(self, tokens: Tokens) -> NetworkRows:
        return self.concat([self._embed(tokens, offset) for offset in range(tokens.window)])

    def head(self, x: NetworkRows, *, norm: str | None = None) -> NetworkRows:
        if not self._previewed:
            return self.linear(x, "head", norm=norm)
        hidden = x if norm is None else self.norm(x, norm)
        down, up = SCREEN
        previewed = self.linear(self.linear(hidden, down), up)
        [head] = self._weights.matrices("head")

        def record(to: Columns) -> None:
            at = hidden.columns()
            previewed.place(to, self)
            self.program.rescore_top_k(head, at, to, REFINED)

        return NetworkRows(self, x.slots, previewed.width, record)

    def last(self, x: NetworkRows, count: int = 1) -> NetworkRows:
        name = last_rows(count)
        return NetworkRows(
            self, count, x.width, lambda to: self.program.gather(x.columns(), name, to)
        )

    def slots(self, x: NetworkRows, count: int) -> NetworkRows:
        return NetworkRows(
            self, count, x.width // count, lambda to: self.program.unfold(x.columns(), count, to)
        )

    def join(self, how: int, x: NetworkRows, y: NetworkRows | Operand) -> NetworkRows:
        """Combine rows elementwise; those of one slot are repeated for each slot."""
        slots = max(x.slots, _slots(y))

        def operand(of: NetworkRows | Operand) -> Operand:
            if isinstance(of, Operand):
                return of
            return Operand(of.columns(), repeat=slots // of.slots if of.slots else 1)

        return NetworkRows(
            self, slots, x.width, lambda to: self.program.join(how, operand(x), operand(y), to)
        )

    def attend(self, layer: int, x: NetworkRows, sees: Sight) -> NetworkRows:
        at = x.columns()
        memory = self._pool.memory[2 * layer : 2 * layer + 2]
        last = np.zeros(1, dtype=np.int32) if sees == "last" else None
        if sees in ("draft", "block"):
            self.blocks |= sees == "block"
            self._see(self._drafted[layer], x.slots, sees == "block")
            self._further = 1 + self._drafted[layer]
            self._drafted[layer] += x.slots
        elif sees == "again":  # they write the same keys and values once more
            self._see(-x.slots, x.slots, True)
        elif sees != "slots" and self._seen != (0, 0, False):
            self._seen = 0, 0, False
            self._further = 0
            self.program.runs("slots1")
        out = NetworkRows(self, x.slots, self._shape.heads * self._shape.head_dim)
        to = out.columns()
        if sees == "slots":
            self.program.attend_slots(at, x.slots, to)
        else:
            self.program.attention(memory, self._angles, (None, None), at, to, last)
        if not x.slots:
            self.taken_in = self.operations
        return self.last(out) if sees == "last" else out

    def know_target(self, make: Callable[[Ops], tuple[NetworkRows, NetworkRows]]) -> None:
        if self._lent is None:
            raise RuntimeUnavailable("this network reads keys and values of a target beside it")

    def attend_target(self, queries: NetworkRows) -> NetworkRows:
        assert self._lent is not None
        assert queries.slots == 1, "one row of each sequence"
        shape, at = self._shape, queries.columns()
        heads = _heads(shape, self._lent, 0)
        out = NetworkRows(self, 1, queries.width)
        memory = self._lent.memory[-2:]  # of the last layer
        to = out.columns()
        self.program.attend_lent(memory, heads, self._angles, at, to, further=self._further)
        return out

    def _embed(self, tokens: Tokens, offset: int) -> NetworkRows:
        [table] = self._weights.matrices("embed")
        ids, slots, window = tokens
        return NetworkRows(
            self,
            slots,
            self._shape.width,
            lambda to: self.program.embed(table, ids, to, stride=window, offset=offset),
        )

    def _product(
        self,
        x: NetworkRows,
        name: str,
        matrices: Sequence[CMatrix],
        width: int,
        norm: str | None,
        plus: NetworkRows | None = None,
        gate: int = 0,
    ) -> NetworkRows:
        weights = None if norm is None else self._weights.vector(norm)

        def record(to: Columns) -> None:
            self.program.product(
                name,
                matrices,
                x.columns(),
                to,
                norm=weights,
                eps=self._shape.norm_eps,
                residual=None if plus is None else plus.columns(),
                gate=gate,
            )

        return NetworkRows(self, x.slots, width, record)

    def _see(self, before: int, slots: int, block: bool) -> None:
        if self._seen != (before, slots, block):
            self._seen = before, slots, block
            self.program.runs("slots1", before, slots, block)


def _heads(shape: Geometry, pool: BlockPool, window: int) -> CHeads:
    kept = KV_DTYPES["fp32" if pool.memory.dtype == np.float32 else "fp16"]
    return CHeads(
        heads=shape.heads,
        kv_heads=shape.kv_heads,
        width=shape.head_dim,
        kv_dtype=kept,
        eps=shape.norm_eps,
        scale=shape.head_dim**-0.5,
        window=window,
        rotated=shape.head_dim,
    )


def _slots(of: NetworkRows | Operand) -> int:
    if isinstance(of, Operand):
        return len(of.weights) if of.weights is not None and of.weights.ndim > 1 else 0
    return of.slots
