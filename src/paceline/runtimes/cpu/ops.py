"""`models.ops.Ops` on the CPU: records a model's operations in a native program."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Sequence
from functools import lru_cache
from typing import Any, Self

import numpy as np

from paceline.core.types import LogitArray
from paceline.errors import ModelError
from paceline.models import ops
from paceline.models.ops import Activation, Experts, Rotary
from paceline.native.library import KV_DTYPES, CHeads, CMatrix, KvDtype, attends
from paceline.native.packed import GROUP, LANES, rotary_table
from paceline.native.program import GATES, Columns, Program
from paceline.runtimes.cpu.mask_rows import COUNT, ROWS, PackedMaskRows
from paceline.runtimes.cpu.matrices import Matrices
from paceline.runtimes.kv_cache import BlockPool


class Recorder:
    """Records operations in a program, with buffers that are reused after the last use."""

    def __init__(self, program: Program) -> None:
        self.program = program
        self._free: dict[tuple[str, int, bool], list[Columns]] = defaultdict(list)

    def take(self, count: str, width: int, quantized: bool) -> Columns:
        free = self._free[count, width, quantized]
        return free.pop() if free else self.program.buffer(count, width, rounded=quantized)

    def give_back(self, count: str, columns: Columns, quantized: bool) -> None:
        self._free[count, columns.width, quantized].append(columns)


class Rows:
    """Rows of a forward: recorded when read.

    Attributes:
        count: name of their number.
        width: of a row.
        groups: they may be quantized: whole groups, each written at once.
    """

    def __init__(
        self,
        owner: Recorder,
        count: str,
        width: int,
        record: Callable[[Columns], None],
        groups: bool = False,
    ) -> None:
        self.count, self.width, self.groups = count, width, groups
        self._owner, self._record = owner, record
        self._place: tuple[Columns, bool] | None = None
        self._holder: Any = None

    def columns(self, quantized: bool = False) -> Columns:
        """Return where they are; `quantized` if only quantized matrices read them."""
        if self._place is None:
            quantized = quantized and self.groups
            self._write(self._owner.take(self.count, self.width, quantized), quantized)
        assert self._place is not None
        columns, already = self._place
        assert not already or quantized, "rows that are quantized are read by quantized matrices"
        return columns

    def place(self, columns: Columns, holder: Any) -> Self:
        """Write them there; `holder` keeps the buffer."""
        if self._place is None:
            self._write(columns, False)
            self._holder = holder
        else:
            self._owner.program.gather(self.columns(), None, columns)
        return self

    def _write(self, columns: Columns, quantized: bool) -> None:
        self._record(columns)
        self._record = nothing  # and what it holds may go
        self._place = columns, quantized

    def __del__(self) -> None:
        if self._place is not None and self._holder is None:
            self._owner.give_back(self.count, *self._place)


def nothing(_: Columns) -> None: ...


class CpuOps(Recorder):
    """Records one forward. Attention is recorded in the order of the layers."""

    def __init__(
        self,
        program: Program,
        matrices: Matrices,
        pool: BlockPool,
        kv_dtype: KvDtype,
        eps: float,
        longest: int,
        extra: LogitArray | None,
        mask_rows: PackedMaskRows | None = None,
    ) -> None:
        """Bind them.

        Args:
            program: gets the operations.
            matrices: of the model.
            pool: keys and values by layer.
            kv_dtype: of the pool.
            eps: of all norms.
            longest: positions are below it.
            extra: float32 `[m, width]`, embeddings of ids from the vocabulary on.
            mask_rows: adapter of the rows of the mask.
        """
        super().__init__(program)
        self._mask_rows = mask_rows
        self._matrices = matrices
        self._pool, self._kv_dtype = pool, kv_dtype
        self._eps, self._longest, self._extra = eps, longest, extra
        # Weights of the experts, by layer that has some; kept until the forward is read.
        self.routes: list[Rows] = []

    def given(self, columns: Columns, count: str) -> Rows:
        """Return rows that are in a buffer of the caller."""
        return Rows(self, count, columns.width, nothing).place(columns, self)

    def pick(self, x: Rows, which: str, count: str) -> Rows:
        """Return the rows that input `which` names."""

        def record(to: Columns) -> None:
            self.program.gather(x.columns(), which, to)

        return Rows(self, count, x.width, record)

    def embed(self, scale: float = 1.0) -> Rows:
        table = self._matrices("embed")

        def record(to: Columns) -> None:
            self.program.embed(table, "input_ids", to, extra=self._extra, scale=scale)

        return Rows(self, "rows", table.inputs, record)

    def norm(self, x: Rows, name: str, *, plus: Rows | None = None) -> Rows:
        weights = self._matrices.required(name)

        def record(to: Columns) -> None:
            added = None if plus is None else plus.columns()
            self.program.gather(x.columns(), None, to, weights, self._eps, added)

        return Rows(self, x.count, x.width, record)

    def linear(
        self,
        x: Rows,
        names: Sequence[str],
        *,
        norm: str | None = None,
        scale: float = 1.0,
        plus: Rows | None = None,
    ) -> Rows:
        matrices = [self._matrices(name) for name in names]
        quantized = norm is None and all(map(self._matrices.quantized, names))
        weights = None if norm is None else self._matrices.required(norm)
        adapter = None if self._mask_rows is None else self._mask_rows.of(names)

        def record(to: Columns) -> None:
            self.program.product(
                names[0],
                matrices,
                x.columns(quantized and adapter is None),
                to,
                norm=weights,
                eps=self._eps,
                scale=scale,
                residual=None if plus is None else plus.columns(),
            )
            if adapter is not None:
                self._adapt(adapter, x.columns(), to, weights, scale)

        width = sum(matrix.outputs for matrix in matrices)
        return Rows(self, x.count, width, record)

    def _adapt(
        self,
        pair: tuple[CMatrix, CMatrix],
        x: Columns,
        to: Columns,
        norm: LogitArray | None,
        scale: float,
    ) -> None:
        # Mask rows alone are read, multiplied and added to.
        down, up = pair
        widths = x.width, down.outputs, up.outputs
        picked, inner, out = buffers = [self.take(COUNT, width, False) for width in widths]
        self.program.gather(x, ROWS, picked)
        self.program.product("mask rows", [down], picked, inner, norm=norm, eps=self._eps)
        self.program.product("mask rows", [up], inner, out, scale=scale)
        self.program.scatter(out, ROWS, to)
        for columns in buffers:
            self.give_back(COUNT, columns, False)

    def gated(
        self, x: Rows, gate: str, up: str, *, activation: Activation, norm: str | None = None
    ) -> Rows:
        matrices = [self._matrices(gate), self._matrices(up)]
        weights = None if norm is None else self._matrices.required(norm)

        def record(to: Columns) -> None:
            self.program.product(
                gate, matrices, x.columns(), to, norm=weights, eps=self._eps, gate=GATES[activation]
            )

        width = matrices[0].outputs
        return Rows(self, x.count, width, record, groups=width % GROUP == 0)

    def attend(self, layer: int, x: Rows, heads: ops.Heads) -> Rows:
        if not attends(heads.heads, heads.kv_heads, heads.width):
            raise ModelError(
                f"heads of width {heads.width}, {heads.heads} over {heads.kv_heads}, do not run "
                f"here (multiples of {LANES} up to 256, at most 48 to a key head): "
                "use --runtime torch"
            )
        angles = self._angles(heads.rotary)
        shape = CHeads(
            heads.heads,
            heads.kv_heads,
            heads.width,
            KV_DTYPES[self._kv_dtype],
            self._eps,
            heads.scale,
            heads.window,
            0 if angles is None else angles.shape[1],
        )
        memory = self._pool.memory[2 * layer : 2 * layer + 2]
        norms = [
            None if name is None else self._matrices.required(name)
            for name in (heads.query_norm, heads.key_norm)
        ]

        def record(to: Columns) -> None:
            self.program.attention(memory, angles, norms, x.columns(), to, heads=shape)

        group = heads.heads // heads.kv_heads * heads.width
        width = heads.heads * heads.width
        return Rows(self, x.count, width, record, groups=group % GROUP == 0)

    def route(self, x: Rows, name: str, experts: Experts) -> Rows:
        scores = self.linear(x, [name])
        norm = None if experts.used else self._matrices.required(f"{name}_norm")

        def record(to: Columns) -> None:
            self.program.route(
                "route",
                scores.columns(),
                to,
                used=experts.used,
                sum_to_one=experts.sum_to_one,
                norm=norm,
                eps=self._eps,
            )

        weights = Rows(self, x.count, experts.count, record)
        self.routes.append(weights)
        return weights

    def mix(
        self,
        x: Rows,
        weights: Rows,
        name: str,
        experts: Experts,
        *,
        activation: Activation,
        plus: Rows,
    ) -> Rows:
        parts = ("gate", "up", "down")[not experts.gated :]
        matrices = [
            [self._matrices(f"{name}.{each}.{part}") for each in range(experts.count)]
            for part in parts
        ]

        def record(to: Columns) -> None:
            self.program.mix(
                "experts",
                matrices,
                x.columns(),
                weights.columns(),
                to,
                activation=GATES[activation],
                residual=plus.columns(),
                every=experts.every,
            )

        return Rows(self, x.count, x.width, record)

    def _angles(self, rotary: Rotary | None) -> LogitArray | None:
        return None if rotary is None else _table(rotary, self._longest)


@lru_cache(maxsize=8)
def _table(rotary: Rotary, positions: int) -> LogitArray:
    # Programs over some of the layers are recorded while texts are written: they share a table.
    return rotary_table(np.asarray(rotary.frequencies), positions, rotary.factor)
