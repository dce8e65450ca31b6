"""`models.ops.Ops` on the CPU: records the operations of a model or a network in a native program.

What is computed for a row does not depend on the rows beside it.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Sequence
from functools import lru_cache
from itertools import accumulate
from typing import Any, NamedTuple, Self

import numpy as np

from paceline.core.types import LogitArray
from paceline.errors import ModelError, RuntimeUnavailable
from paceline.models.ops import (
    KV,
    Activation,
    Experts,
    Heads,
    Name,
    Names,
    Sight,
    StateHeads,
    Temperature,
)
from paceline.native.blocks import GROUP
from paceline.native.library import KV_DTYPES, CHeads, CMatrix, CStateHeads, attends
from paceline.native.packed import LANES
from paceline.native.program import (
    ALL,
    BLOCK,
    CONTEXT,
    EXACT_GELU,
    GATE,
    GATE_ROW,
    GATES,
    GELU,
    ITSELF,
    LAST,
    LENT,
    NONE,
    PRODUCT,
    RELU2,
    SILU,
    SUM,
    TANH,
    Columns,
    Operand,
    Program,
)
from paceline.networks.head_preview import CENTROIDS, REFINED, SCREEN, Clusters
from paceline.runtimes.cpu.mask_rows import COUNT, ROWS, PackedMaskRows
from paceline.runtimes.cpu.matrices import Matrices, NetworkMatrices
from paceline.runtimes.kv_cache import BlockPool
from paceline.runtimes.states import StateShape


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
    """Rows of a forward: recorded when read. `+` and `*` work elementwise.

    Attributes:
        count: name of their number.
        width: of a row.
        groups: they may be quantized: whole groups, each written at once.
        slots: draft rows of a network per sequence; 0 for context rows, and those of a model.
    """

    def __init__(
        self,
        owner: CpuOps,
        count: str,
        width: int,
        record: Callable[[Columns], None],
        groups: bool = False,
        slots: int = 0,
    ) -> None:
        self.count, self.width, self.groups, self.slots = count, width, groups, slots
        self._owner, self._record = owner, record
        self._place: tuple[Columns, bool] | None = None
        self._holder: Any = None

    def __add__(self, other: Rows | Operand) -> Rows:
        return self._owner.join(SUM, self, other)

    __radd__ = __add__

    def __mul__(self, other: Rows | Operand) -> Rows:
        return self._owner.join(PRODUCT, self, other)

    __rmul__ = __mul__

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


@lru_cache(maxsize=4)
def _query_factors(of: Temperature, positions: int) -> LogitArray:
    return of.at(np.arange(positions))


def nothing(_: Columns) -> None: ...


class Tokens(NamedTuple):
    """Token ids: the name of an input, or a buffer that `pick` filled.

    Of `slots` draft rows per sequence; 0 for context rows, and those of a model.
    """

    ids: str | Columns
    slots: int = 0


MEMORY = "memory_"
"""Before the names of inputs that say what rows see of a memory."""

FRAMES = "frames"
"""Name of the number of rows that an encoder is given."""

NEIGHBOURS = ("before", "own", "behind")
"""Names of inputs: the number of the row before each, of itself and of the one behind."""


SQUARES = "squares"
"""Name of the number of a picture's squares, and before those of inputs: their first rows..."""


def last_rows(count: int) -> str:
    """Return the name of the input with the last `count` context rows of each sequence."""
    return f"last_rows{count}"


def rows_of(slots: int) -> str:
    """Return the name of a row count."""
    return f"slots{slots}" if slots else "rows"


class CpuOps(Recorder):
    """Records one forward. Implements `models.ops.Ops`.

    Attention of a model is recorded when it is read, in the order of the layers: what rows see are
    inputs of a run. A network's is recorded at once, since it fills a cache.
    """

    def __init__(
        self,
        program: Program,
        matrices: Matrices | NetworkMatrices,
        pool: BlockPool,
        eps: float,
        *,
        sights: Sights | None = None,
        extra: LogitArray | None = None,
        mask_rows: PackedMaskRows | None = None,
        lent: BlockPool | None = None,
        memory: BlockPool | None = None,
        previewed: bool = False,
    ) -> None:
        """Bind them; `eps` is that of all norms.

        A model may have `extra` embeddings, float32 `[m, width]`, of ids from the vocabulary on,
        and an adapter of mask rows. A network has `sights`, what its rows see; keys and values
        `lent` by the target, if it may read them; and what spares reading its whole head, to use
        if `previewed`. `memory` is what an encoder writes and its decoder looks at.
        """
        super().__init__(program)
        self._matrices, self._pool, self._eps = matrices, pool, eps
        self._sights, self._extra, self._mask_rows = sights, extra, mask_rows
        self._lent, self._previewed = lent, previewed and matrices.previews
        self._memory, self._looks = memory, False
        # Tables of which a run is given the rows of its positions.
        self.placed_by: set[str] = set()
        self._slots = {1}
        # Weights of the experts, by layer that has some; kept until the forward is read.
        self.routes: list[Rows] = []
        # Tables of which a run is given the rows of its tokens, times these.
        self.tables: dict[str, float] = {}
        # Those of nodes, of all recurrent layers.
        self.records: Columns | None = None
        # Operations until all context rows are in the caches.
        self.taken_in = 0

    @property
    def operations(self) -> int:
        """Number of operations so far."""
        return len(self.program.names)

    def given(self, columns: Columns, count: str) -> Rows:
        """Return rows that are in a buffer of the caller."""
        return Rows(self, count, columns.width, nothing).place(columns, self)

    def loaded(self, name: str, slots: int, width: int) -> Rows:
        """Return the rows of float32 input `name`."""
        return self._draft_rows(slots, width, lambda to: self.program.load(name, to))

    def count(self, slots: int) -> str:
        """Return the name of a row count, which runs are given from now on."""
        self._slots.add(slots)
        return rows_of(slots)

    def counts(self, sequences: int, rows: int = 0) -> dict[str, int]:
        """Return row counts of a run with so many sequences (or branches) and context rows."""
        return {rows_of(each): each * sequences if each else rows for each in self._slots}

    def _draft_rows(self, slots: int, width: int, record: Callable[[Columns], None]) -> Rows:
        return Rows(self, self.count(slots), width, record, slots=slots)

    def _like(
        self, x: Rows, width: int, record: Callable[[Columns], None], groups: bool = False
    ) -> Rows:
        return Rows(self, x.count, width, record, groups, x.slots)

    def weight(self, name: str) -> Operand:
        return Operand(None, weights=self._matrices.required(name))

    def embed(self, tokens: Tokens, scale: float = 1.0, table: str = "embed") -> Rows:
        ids, slots = tokens
        if self._matrices.in_file(table):
            assert isinstance(ids, str), "rows of a file are found for tokens that are given"
            width = self._matrices.table_width(table)
            self.tables[table] = scale
            return self.loaded(table, slots, width)
        [matrix] = self._matrices.of([table])

        def record(to: Columns) -> None:
            self.program.embed(matrix, ids, to, extra=self._extra, scale=scale)

        return self._draft_rows(slots, matrix.inputs, record)

    def norm(self, x: Rows, name: str, *, residual: Rows | None = None, heads: int = 1) -> Rows:
        weights, bias = self._matrices.required(name), self._matrices.bias(name)

        def record(to: Columns) -> None:
            if bias is not None:
                self.program.layer_norm(x.columns(), to, weights, bias, self._eps)
                return
            added = None if residual is None else residual.columns()
            self.program.gather(x.columns(), None, to, weights, self._eps, added, heads)

        out = self._like(x, x.width, record)
        return out if bias is None or residual is None else residual + out

    def linear(
        self,
        x: Rows,
        names: Names,
        *,
        norm: Name = None,
        scale: float = 1.0,
        residual: Rows | None = None,
    ) -> Rows:
        assert residual is None or residual.slots == x.slots, (
            f"{names}: context and draft rows are summed"
        )
        if norm is not None and self._matrices.bias(norm) is not None:
            x, norm = self.norm(x, norm), None
        matrices = self._matrices.of(names)
        quantized = norm is None and all(map(self._matrices.quantized, self._matrices.parts(names)))
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
                residual=None if residual is None else residual.columns(),
            )
            if adapter is not None:
                self._adapt(adapter, x.columns(), to, weights, scale)

        return self._like(x, sum(matrix.outputs for matrix in matrices), record)

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
        self, x: Rows, names: Names, *, activation: Activation = "silu", norm: Name = None
    ) -> Rows:
        matrices = self._matrices.of(names, pair=True)
        weights = None if norm is None else self._matrices.required(norm)

        def record(to: Columns) -> None:
            self.program.product(
                names[0],
                matrices,
                x.columns(),
                to,
                norm=weights,
                eps=self._eps,
                gate=GATES[activation],
            )

        width = matrices[0].outputs
        return self._like(x, width, record, groups=width % GROUP == 0)

    def head(self, x: Rows, *, norm: str | None = None, scale: float = 1.0) -> Rows:
        if not self._previewed:
            return self.linear(x, ["head"], norm=norm, scale=scale)
        hidden = x if norm is None else self.norm(x, norm)
        assert isinstance(self._matrices, NetworkMatrices)
        if self._matrices.clusters is not None:
            return self._of_clusters(hidden, self._matrices, self._matrices.clusters)
        down, up = SCREEN
        previewed = self.linear(self.linear(hidden, [down]), [up])
        [head] = self._matrices.of(["head"])

        def record(to: Columns) -> None:
            at = hidden.columns()
            previewed.place(to, self)
            self.program.rescore_top_k(head, at, to, REFINED)

        return self._like(x, previewed.width, record)

    def _of_clusters(self, hidden: Rows, matrices: NetworkMatrices, clusters: Clusters) -> Rows:
        scores, head = self.linear(hidden, [CENTROIDS]), matrices.head_by_cluster(clusters)

        def record(to: Columns) -> None:
            at = hidden.columns(), scores.columns(), to
            self.program.clustered(head, clusters.tokens, clusters.best, *at)

        return self._like(hidden, clusters.tokens.size, record)

    def silu(self, x: Rows) -> Rows:
        return self.join(SILU, x, x)

    def tanh(self, x: Rows) -> Rows:
        return self.join(TANH, x, x)

    def gelu(self, x: Rows, *, exact: bool = False) -> Rows:
        return self.join(EXACT_GELU if exact else GELU, x, x)

    def placed(self, x: Rows, table: str) -> Rows:
        self.placed_by.add(table)
        return x + self.loaded(table, x.slots, x.width)

    def neighbours(self, x: Rows, stride: int = 1) -> Rows:
        def record(to: Columns) -> None:
            for tap, name in enumerate(NEIGHBOURS):
                part = to.part(tap * x.width, x.width)
                self.program.gather(x.columns(), f"{name}{stride}", part)

        return Rows(self, FRAMES if stride == 1 else rows_of(0), 3 * x.width, record)

    def squares(self, x: Rows, grid: int, side: int) -> Rows:
        def record(to: Columns) -> None:
            for tap in range(side * side):
                part = to.part(tap * x.width, x.width)
                self.program.gather(x.columns(), f"{SQUARES}{tap}", part)

        return Rows(self, SQUARES, side * side * x.width, record)

    def times(self, x: Rows, by: str | float) -> Rows:
        number = self._matrices.required(by).item() if isinstance(by, str) else by
        return self.join(PRODUCT, x, Operand(None, weights=np.full(x.width, number, np.float32)))

    def relu2(self, x: Rows) -> Rows:
        return self.join(RELU2, x, x)

    def join(self, how: int, x: Rows, y: Rows | Operand) -> Rows:
        """Combine rows elementwise; those of one slot are repeated for each slot."""
        slots = max(x.slots, _slots(y))

        def operand(of: Rows | Operand) -> Operand:
            if isinstance(of, Operand):
                return of
            return Operand(of.columns(), repeat=slots // of.slots if of.slots else 1)

        def record(to: Columns) -> None:
            self.program.join(how, operand(x), operand(y), to)

        if slots == x.slots:
            return self._like(x, x.width, record)
        return self._draft_rows(slots, x.width, record)

    def gate(self, x: Rows, by: Rows) -> Rows:
        return self.join(GATE if by.width == x.width else GATE_ROW, x, by)

    def concat(self, parts: Sequence[Rows]) -> Rows:
        def record(to: Columns) -> None:
            begin = 0
            for each in parts:
                each.place(to.part(begin, each.width), out)
                begin += each.width

        out = self._like(parts[0], sum(each.width for each in parts), record)
        return out

    def split(self, x: Rows, sizes: Sequence[int]) -> list[Rows]:
        columns, ends = x.columns(), accumulate(sizes)
        return [
            self._like(x, size, nothing).place(columns.part(end - size, size), x)
            for size, end in zip(sizes, ends, strict=True)
        ]

    def last(self, x: Rows, count: int = 1) -> Rows:
        name = last_rows(count)
        return self._draft_rows(
            count, x.width, lambda to: self.program.gather(x.columns(), name, to)
        )

    def slots(self, x: Rows, count: int) -> Rows:
        width = x.width * x.slots // count
        return self._draft_rows(
            count, width, lambda to: self.program.fold(x.columns(), x.width, to)
        )

    def attend(
        self, kv: int | KV, x: Rows, heads: Heads, sees: Sight = "context", newest: int = 1
    ) -> Rows:
        if not attends(heads.heads, heads.kv_heads, heads.width):
            raise ModelError(
                f"heads of width {heads.width}, {heads.heads} over {heads.kv_heads}, do not run "
                f"here (multiples of {LANES} up to 576, at most 48 to a key head): "
                "use --runtime torch"
            )
        if sees == "slots":
            width = heads.heads * heads.width
            return self._like(
                x, width, lambda to: self.program.attend_slots(x.columns(), x.slots, to)
            )
        if isinstance(kv, KV):
            return self._attend(kv, x, heads, LENT, sees)
        # Where only last rows are read, no others are computed.
        out = self._attend(kv, x, heads, LAST if sees == "last" else ALL, sees)
        if not x.slots:
            self.taken_in = self.operations
        if newest > 1:
            return self._attend(KV(kv), self.last(x, newest), heads, LENT, sees)
        return self.last(out) if sees == "last" else out

    def _attend(self, kv: int | KV, x: Rows, heads: Heads, asked: int, sees: Sight) -> Rows:
        pool = self._lent if isinstance(kv, KV) and kv.target else self._pool
        looks = isinstance(kv, KV) and kv.memory
        pool = self._memory if looks else pool
        if pool is None:
            raise RuntimeUnavailable("this network reads keys and values of a target beside it")
        memory = pool.layer(kv.layer if isinstance(kv, KV) else kv)
        angles = self._angles(heads)
        shape = self._shape(heads, pool, angles)
        longest, grows = self.program.longest, heads.temperature
        vectors = [
            None if name is None else self._matrices.required(name)
            for name in (heads.query_norm, heads.key_norm, heads.sinks)
        ]
        vectors.append(None if grows is None else _query_factors(grows, longest))

        def record(to: Columns) -> None:
            at = x.columns()  # may be those of another attention
            self._look(looks)
            self.program.attention(memory, angles, vectors, at, to, asked, heads=shape)

        group = heads.heads // heads.kv_heads * heads.width
        width = heads.heads * heads.width
        out = self._like(x, width, record, groups=group % GROUP == 0)
        if self._sights is not None:
            x.columns()
            self._sights.see(self.program, kv, x.slots, sees)
            out.columns()
        return out

    def _look(self, looks: bool) -> None:
        # Rows of the next attention see their memory, or their text; a network has sights.
        if looks != self._looks and self._sights is None:
            self._looks = looks
            self.program.paths(rows_of(0), MEMORY if looks else "")

    def store(self, layer: int, kv: Rows, heads: Heads) -> None:
        assert self._memory is not None
        shape, memory = self._shape(heads, self._memory, None), self._memory.layer(layer)
        at = kv.columns()
        self._look(True)
        self.program.attention(memory, None, [None] * 4, at, at, NONE, heads=shape)

    def convolve(self, layer: int, x: Rows, name: str, *, activated: bool = True) -> Rows:
        weights = self._matrices.required(name)
        weights = np.ascontiguousarray(weights.reshape(x.width, -1).T)
        (shape, records), bias = self._recurrence(layer), self._matrices.bias(name)

        def record(to: Columns) -> None:
            at = shape.place(layer), x.columns(), records
            self.program.convolve(weights, *at, to, activated=activated, bias=bias)

        return self._like(x, x.width, record)

    def delta(self, layer: int, x: Rows, gates: Rows, name: str, of: StateHeads) -> Rows:
        return self._scan("delta", layer, x, gates, of, [f"{name}_rate", f"{name}_dt"])

    def scan(self, layer: int, x: Rows, steps: Rows, name: str, of: StateHeads) -> Rows:
        vectors = [f"{name}_{each}" for each in ("rate", "dt", "skip")]
        return self._scan("scan", layer, x, self.concat([steps, steps]), of, vectors)

    def _scan(
        self, name: str, layer: int, x: Rows, gates: Rows, of: StateHeads, vectors: Names
    ) -> Rows:
        shape, records = self._recurrence(layer)
        sizes = of.key_heads, of.value_heads, of.key_width, of.value_width
        place = shape.place(layer) + shape.tail
        kept = map(self.program.packed.keep, map(self._matrices.required, vectors))
        native = CStateHeads(*sizes, of.tiled, 0, place, *kept)
        behind = records.part(shape.convolved, shape.record - shape.convolved)

        def record(to: Columns) -> None:
            self.program.scan(name, native, x.columns(), gates.columns(), behind, to)

        return self._like(x, of.values, record)

    def _recurrence(self, layer: int) -> tuple[StateShape, Columns]:
        # Shape of states, and the records of a layer.
        assert self._pool.states is not None
        assert self.records is not None
        shape = self._pool.states.shape
        return shape, self.records.part(layer * shape.record, shape.record)

    def _shape(self, heads: Heads, pool: BlockPool, angles: LogitArray | None) -> CHeads:
        return CHeads(
            heads.heads,
            heads.kv_heads,
            heads.width,
            KV_DTYPES["fp32" if pool.dtype == np.float32 else "fp16"],
            self._eps,
            heads.scale,
            heads.window,
            self._sights is None,  # rows of a network's block see it whole, whatever its window
            0 if angles is None else angles.shape[1],
            heads.value_norm,
        )

    def _angles(self, heads: Heads) -> LogitArray | None:
        rotary, program = heads.rotary, self.program
        if rotary is None:
            return None
        return program.packed.rotary_table(rotary.frequencies, program.longest, rotary.factor)

    def route(self, x: Rows, name: str, experts: Experts) -> Rows:
        scores = self.linear(x, [name])
        norm = None if experts.used else self._matrices.required(f"{name}_norm")
        offset = self._matrices.required(f"{name}_offset") if experts.sigmoid else None

        def record(to: Columns) -> None:
            self.program.route(
                "route",
                scores.columns(),
                to,
                used=experts.used,
                sum_to_one=experts.sum_to_one,
                sigmoid=experts.sigmoid,
                groups=(experts.groups, experts.groups_used),
                factor=experts.factor,
                norm=norm,
                offset=offset,
                eps=self._eps,
            )

        weights = self._like(x, experts.count, record)
        self.routes.append(weights)
        return weights

    def mix(
        self,
        x: Rows,
        weights: Rows,
        name: str,
        experts: Experts,
        activation: Activation,
        residual: Rows | None = None,
    ) -> Rows:
        parts = ("gate", "up", "down")[not experts.gated :]
        matrices = [
            self._matrices.of([f"{name}.{each}.{part}" for each in range(experts.count)])
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
                residual=None if residual is None else residual.columns(),
                every=experts.every,
            )

        return self._like(x, x.width, record)


class Sights:
    """What the rows of a network see: the context of their sequence, then what was drafted.

    Attributes:
        drafted: draft rows so far, of each sequence, by what they attended to.
        blocks: whether rows of a step see one another both ways.
        roots: whether rows stand where the root does.
    """

    def __init__(self) -> None:
        self.drafted: dict[int | KV, int] = defaultdict(int)
        self.blocks = self.roots = False
        self._seen: tuple[str, int, int, int] | None = None

    def see(self, program: Program, kv: int | KV, slots: int, sees: Sight) -> None:
        """Record what the rows of the next attention see."""
        lent, target = isinstance(kv, KV), isinstance(kv, KV) and (kv.target or kv.memory)
        first, upto = -slots, ITSELF
        if sees in ("draft", "block"):
            first, upto = self.drafted[kv], BLOCK if sees == "block" else ITSELF
            self.drafted[kv] += slots
            self.blocks |= sees == "block"
        elif sees == "root":
            first, self.roots = 0, True
        elif not lent:
            slots = 0
        upto = CONTEXT if target or (lent and sees == "last") else upto
        now = ("lent_" if target else "", first, slots, upto)
        if self._seen != now:
            self._seen = now
            self._record(program, *now)

    def _record(self, program: Program, of: str, first: int, slots: int, upto: int) -> None:
        program.runs("slots1", first, slots, upto, of)


class BranchSights(Sights):
    """What branches see are inputs: the context and the branch itself."""

    def _record(self, program: Program, of: str, first: int, slots: int, upto: int) -> None:
        program.paths(rows_of(slots), of)


def _slots(of: Rows | Operand) -> int:
    if isinstance(of, Operand):
        return len(of.weights) if of.weights is not None and of.weights.ndim > 1 else 0
    return of.slots
