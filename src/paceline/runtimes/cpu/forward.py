"""A forward: its rows as the kernels read them, its program, recorded once, and its profile."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from time import perf_counter

import numpy as np
import numpy.typing as npt

from paceline.core import target
from paceline.core import tree as trees
from paceline.core.rows import RowStore
from paceline.core.target import Layer, keys_seen, row_parents
from paceline.core.types import ROOT, LogitArray, TokenTree
from paceline.errors import InvalidOption, OutOfMemory
from paceline.models import families
from paceline.models.config import ModelConfig
from paceline.models.families import base
from paceline.native.library import CHeads
from paceline.native.packed import Packed
from paceline.native.program import Columns, Program
from paceline.runtimes.cpu import mask_rows
from paceline.runtimes.cpu.matrices import Matrices
from paceline.runtimes.cpu.ops import MEMORY, CpuOps, Rows, Tokens
from paceline.runtimes.kv_cache import BLOCK, BlockPool, PagedCache
from paceline.runtimes.reference.arithmetic import turns
from paceline.runtimes.states import SequenceState

_WARM_UPS = 3
FAR = 1024  # rows of a forward whose positions are beyond the context, at most
_NUMBERS = 9  # of a `Recurrence`
_FIELDS = 6  # of a `Row` in native/kernels/visible_keys.hpp

# Rows of a batch whose logits, and whose features, are of one sequence.
Span = tuple[slice, slice]


class ForwardBatch:
    """Rows of one forward: what each sees is a run of its sequence's tokens, then single ones."""

    def __init__(self) -> None:
        self.ids: list[int] = []
        self.logit_rows: list[int] = []
        self.feature_rows: list[int] = []
        self.argmax = False  # some sequence asks for the argmax by row
        self.mask_rows: list[int] = []
        self.far = False  # some sequence has lost tokens: positions may be any
        self._shift = 0  # of the sequence that is added, from places to positions
        self._rows: list[int] = []
        self._tables: list[int] = []
        self._singles: list[int] = []
        self._memory_rows: list[int] = []
        self._memory_tables: list[int] = []
        self.states: list[SequenceState] = []
        self._states: list[int] = []
        self._parents: list[int] = []  # of rows with records

    @classmethod
    def of(cls, rows: Sequence[target.Rows]) -> tuple[ForwardBatch, list[Span]]:
        """Return the rows of some sequences, and where the outputs of each are.

        Raises OutOfMemory if a cache cannot hold them; then none holds any.
        """
        batch = cls()
        try:
            return batch, [batch.add(each) for each in rows]
        except OutOfMemory:
            for each in rows:  # their branches would keep others from trying with less
                each.cache.discard()
            raise

    def add(self, rows: target.Rows) -> Span:
        """Add a sequence's rows; raises OutOfMemory if its cache cannot hold them."""
        cache, count, first = rows.cache, len(rows.tokens), len(self.ids)
        cache.discard()
        past, self._shift = cache.rows, cache.gone
        self.far = self.far or cache.gone > 0
        cache.reserve(count)
        if cache.state is not None:
            self._add_state(cache.state, rows)
        self.ids += rows.tokens
        if cache.memory is not None:
            self._add_memory(cache.memory, count)
        table = len(self._tables)
        self._tables += cache.blocks[: -(-(past + count) // BLOCK)]
        if rows.sees is not None:
            self._add_block(rows, table)
        elif not rows.tree or trees.is_chain(rows.tree):
            self._add_chain(cache.blocks, table, past, count)
            cache.places = list(range(past + rows.num_new, past + count))
        else:
            self._add_chain(cache.blocks, table, past, rows.num_new)
            cache.places = self._add_tree(cache.blocks, table, past + rows.num_new, rows.tree)
        logits, features = len(self.logit_rows), len(self.feature_rows)
        if rows.wanted is None:
            self.logit_rows += range(first + rows.root, first + count)
        else:
            self.logit_rows += (first + rows.wanted).tolist()
        if rows.features:
            self.feature_rows += range(first, first + count)
        self.argmax = self.argmax or rows.argmax
        return slice(logits, len(self.logit_rows)), slice(features, len(self.feature_rows))

    def _add_memory(self, memory: PagedCache, count: int) -> None:
        # All of it is seen by each row.
        run = memory.length
        self._memory_rows += (0, 0, len(self._memory_tables), run, 0, run) * count
        self._memory_tables += memory.blocks

    def _add_state(self, state: SequenceState, rows: target.Rows) -> None:
        nodes, first = len(rows) - rows.num_new, len(self._parents)
        self.states.append(state)
        self._states += state.begin(rows.num_new, nodes, len(self.ids), first)
        parents = row_parents(rows)
        fresh = 0 if state.recorded(rows.num_new) else rows.num_new
        self._parents += [max(each - fresh, ROOT) for each in parents[fresh:]]

    def _add_row(
        self,
        blocks: Sequence[int],
        table: int,
        place: int,
        position: int,
        run: int,
        singles: Sequence[int] = (),
    ) -> None:
        # `Plan` in native/kernels/visible_keys.hpp: position, storage slot, begin of the table of
        # blocks, length of the run, begin of the single tokens, keys that it sees.
        slot = blocks[place // BLOCK] * BLOCK + place % BLOCK
        self._rows += (position, slot, table, run, len(self._singles), run + len(singles))
        self._singles += singles

    def _add_chain(self, blocks: Sequence[int], table: int, begin: int, count: int) -> None:
        for place in range(begin, begin + count):
            self._add_row(blocks, table, place, place + self._shift, place + 1)

    def _add_tree(
        self, blocks: Sequence[int], table: int, begin: int, draft: TokenTree
    ) -> list[int]:
        # The first root-to-leaf path is stored first, so that keeping it moves nothing.
        places, runs, apart = _places(draft.parents.tolist(), begin)
        for place, run, singles in zip(places, runs, apart, strict=True):
            position = self._shift + run + len(singles) - 1
            self._add_row(blocks, table, place, position, run, singles)
        return places

    def _add_block(self, rows: target.Rows, table: int) -> None:
        assert rows.positions is not None
        assert rows.sees is not None
        cache, past, count = rows.cache, rows.cache.rows, len(rows.tokens)
        cache.places = list(range(past + rows.num_new, past + count))
        if rows.cached is not None and rows.cached.ndim == 2:
            for row, position in enumerate(rows.positions.tolist()):
                keys = keys_seen(rows, row, past)
                run = int(np.append(keys != np.arange(len(keys)), True).argmax())
                singles = keys[run:].tolist()
                self._add_row(cache.blocks, table, past + row, position, run, singles)
            return
        runs: Iterable[int] = [past] * count if rows.cached is None else rows.cached.tolist()
        for row, (position, run) in enumerate(zip(rows.positions.tolist(), runs, strict=True)):
            sees = rows.sees[row]
            # Rows behind the cached keys continue their run: a chain needs no single ones.
            lead = int(np.append(sees, False).argmin()) if run == past else 0
            singles = (past + lead + np.flatnonzero(sees[lead:])).tolist()
            self._add_row(cache.blocks, table, past + row, position, run + lead, singles)

    @property
    def positions(self) -> npt.NDArray[np.int64]:
        """By row."""
        return np.array(self._rows[::_FIELDS], np.int64)

    def counts(self) -> dict[str, int]:
        return {
            "rows": len(self.ids),
            "logits": len(self.logit_rows),
            "features": len(self.feature_rows),
            "argmax": len(self.logit_rows) if self.argmax else 0,
            mask_rows.COUNT: len(self.mask_rows),
            "sequences": len(self._states) // _NUMBERS,
            "nodes": len(self._parents),
        }

    def inputs(self) -> dict[str, list[int] | npt.NDArray[np.int32]]:
        return {
            "input_ids": self.ids,
            "logit_rows": self.logit_rows,
            "feature_rows": self.feature_rows,
            "rows": self._rows,
            "tables": self._tables,
            "singles": self._singles,
            f"{MEMORY}rows": self._memory_rows,
            f"{MEMORY}tables": self._memory_tables,
            f"{MEMORY}singles": [],
            mask_rows.ROWS: self.mask_rows,
            "states": np.array(self._states, dtype=np.int64).view(np.int32),
            "parents": self._parents,
        }


def _places(parents: list[int], begin: int) -> tuple[list[int], list[int], list[list[int]]]:
    # By node: position; tokens seen without a gap; positions of the others, itself last.
    inner = set(parents)
    node = next(node for node in range(len(parents)) if node not in inner)
    lead: set[int] = set()
    while node != ROOT:
        lead.add(node)
        node = parents[node]
    next_lead, next_other = begin, begin + len(lead)
    stored: list[int] = []
    runs: list[int] = []
    apart: list[list[int]] = []
    for node, parent in enumerate(parents):
        run, singles = (begin, []) if parent == ROOT else (runs[parent], apart[parent])
        if node in lead:  # in order of their depth, as all nodes stand behind their parents
            stored.append(next_lead)
            next_lead += 1
            run += 1
        else:
            stored.append(next_other)
            next_other += 1
            singles = [*singles, stored[node]]
        runs.append(run)
        apart.append(singles)
    return stored, runs, apart


# Groups of a forward's profile by the last part of an operation's name; matmuls have the name of
# their first matrix.
_GROUPS = {
    "q": "product qkv",
    "o": "product o",
    "gate": "product gate-up",
    "down": "product down",
    "head": "product LM head",
    "attention": "attention",
    "gather": "gathers and norms",
}
_REST = "the rest"

# All groups, in table order.
GROUPS = (*_GROUPS.values(), _REST)


@dataclass(frozen=True, slots=True)
class Counted:
    """Mean profile of some inferences.

    Attributes:
        seconds: of the whole inference.
        groups: seconds by group, in the order of `GROUPS`.
    """

    seconds: float
    groups: dict[str, float]


def by_group(operations: Iterable[tuple[str, float]]) -> dict[str, float]:
    """Sum seconds of operations, given by name, by group."""
    found: dict[str, float] = defaultdict(float)
    for name, seconds in operations:
        found[_GROUPS.get(name.rpartition(".")[2], _REST)] += seconds
    return {name: found[name] for name in GROUPS}


def _bits(rows: LogitArray) -> npt.NDArray[np.int32]:
    return np.ascontiguousarray(rows, np.float32).reshape(-1).view(np.int32)


class Forward:
    """A model's forward as one native program."""

    def __init__(
        self,
        config: ModelConfig,
        matrices: Matrices,
        packed: Packed,
        pool: BlockPool,
        extra: RowStore,
        layers: Sequence[Layer] | None = None,
        given: bool = False,
        masks: mask_rows.PackedMaskRows | None = None,
        boundaries: tuple[int, ...] = (),
        memory: BlockPool | None = None,
    ) -> None:
        """Record it.

        Args:
            config: of the model.
            matrices: of the model.
            packed: holds them.
            pool: keys and values.
            extra: rows of ids from the vocabulary on.
            layers: those to run; None for all.
            given: rows start from the input "inputs", not from embeddings.
            masks: adapter of mask rows.
            boundaries: whose states features have behind the usual ones.
            memory: what an encoder writes, if there is one.
        """
        self._masks, self._extra = masks, extra
        width = config.hidden_size
        # As many rows at once as the layer with most query heads to a key head can take.
        heads = CHeads(config.heads, min((each for each, _ in config.kv_shapes), default=1))
        self._near, self._packed = config.max_context, packed
        self._program = program = Program(packed, heads, self._near + FAR)
        ops = CpuOps(
            program,
            matrices,
            pool,
            config.norm_eps,
            extra=extra.numbers,
            mask_rows=masks,
            memory=memory,
        )
        program.paths("rows")
        self._records: Columns | None = None
        if pool.states is not None:
            self._records = program.buffer("nodes", pool.states.shape.record_size)
            program.recurrences(config.taps)
            ops.records = self._records
        tokens = Tokens("input_ids")
        if given:
            first = program.buffer("rows", width)
            program.load("inputs", first)
            x = ops.given(first, "rows")
        else:
            x = base.embed(ops, config, tokens)
        seen: list[Rows] = []
        states: list[Rows] = []
        halves = families.halves_of(config, ops, tokens)
        self._matrices, self._tables, self._placed_by = matrices, ops.tables, ops.placed_by
        x = base.forward(
            ops,
            config,
            halves,
            x,
            layers=layers,
            features=seen,
            states=states,
            boundaries=boundaries,
        )
        self._state: Columns | None = None
        if layers is not None:
            self._state = program.buffer("rows", width)
            program.gather(states[0].columns(), None, self._state)
        self._features = program.buffer("features", len(seen) * width)
        for index, rows in enumerate(seen):
            to = self._features.part(index * width, width)
            program.gather(rows.columns(), "feature_rows", to)
        del seen, states
        self._routes = ops.routes
        self._hidden = program.buffer("logits", width)
        program.gather(x.columns(), "logit_rows", self._hidden)
        logits = base.head(ops, config, ops.given(self._hidden, "logits"))
        self._logits_rows = logits  # keeps its buffer
        self._logits: Columns = logits.columns()
        self._argmax = program.argmax(self._logits, "argmax")
        self.seconds, self._ran = 0.0, 0
        self._batch: ForwardBatch | None = None  # of the last run

    def run(self, batch: ForwardBatch, threads: int, given: LogitArray | None = None) -> None:
        begin = perf_counter()
        if self._masks is not None:
            batch.mask_rows = self._masks.rows(batch.ids)
        inputs = self._inputs(batch)
        if given is not None:
            inputs["inputs"] = _bits(given)
        if batch.far:
            inputs["rows"] = self._turned(inputs["rows"])
        self._program.run(batch.counts(), inputs, threads)
        self._ran, self._batch = len(batch.ids), batch
        self.seconds = perf_counter() - begin

    def _turned(self, rows: list[int] | npt.NDArray[np.int32]) -> npt.NDArray[np.int32]:
        # Positions beyond the rotary tables have places behind them, filled for this run.
        plans = np.array(rows, np.int32).reshape(-1, _FIELDS)
        places = plans[:, 0]
        far = np.unique(places[places >= self._near])
        if len(far) > FAR:
            raise InvalidOption(f"{len(far)} rows of texts without end are more than {FAR} at once")
        for frequencies, factor, table in self._packed.rotary_tables(self._near + FAR):
            found = turns(np.outer(far, frequencies), factor)
            table[self._near : self._near + len(far)] = np.concatenate(found, axis=1)
        beyond = places >= self._near
        plans[beyond, 0] = self._near + np.searchsorted(far, places[beyond])
        return plans.ravel()

    def _inputs(self, batch: ForwardBatch) -> dict[str, list[int] | npt.NDArray[np.int32]]:
        found = batch.inputs()
        if self._extra.made:
            found["input_ids"] = self._extra.in_table(batch.ids)
        if self._tables:
            ids = np.asarray(batch.ids, np.int64)
            for name, scale in self._tables.items():
                found[name] = _bits(self._matrices.table_rows(name, ids) * np.float32(scale))
        for name in self._placed_by:
            found[name] = _bits(self._matrices.table_rows(name, batch.positions))
        return found

    def output(self, name: str, batch: ForwardBatch) -> LogitArray:
        """Return float32 `[n, ...]`, a view that the next run overwrites.

        "logits" and "hidden" are of the batch's logit rows, "features" of its feature rows, "state"
        of all rows.
        """
        columns = {"logits": self._logits, "hidden": self._hidden, "features": self._features}
        rows = batch.counts()[{"features": "features", "state": "rows"}.get(name, "logits")]
        at = self._state if name == "state" else columns[name]
        assert at is not None
        return self._program.read(at, rows)

    def records(self, state: SequenceState) -> LogitArray:
        """Return float32 `[rows, record_size]` of the last run's rows of a sequence; a view.

        Raises InvalidOption if the sequence was not in that run.
        """
        begin, count = state.recorded_rows
        if self._records is None or self._batch is None or state not in self._batch.states:
            raise InvalidOption("another forward ran before `keep`: keep its rows first")
        return self._program.read(self._records, begin + count)[begin:]

    def routes(self) -> list[LogitArray]:
        return [self._program.read(each.columns(), self._ran) for each in self._routes]

    def argmax(self, batch: ForwardBatch) -> list[int]:
        """Return the argmax by logit row; empty if no `Rows` asked for it."""
        rows = batch.counts()["argmax"]
        if not rows:
            return []
        found: list[int] = self._program.read(self._argmax, rows).view(np.int32)[:, 0].tolist()
        return found

    def counted(self, batch: ForwardBatch, threads: int, runs: int) -> Counted:
        """Repeat a forward and return the time of its parts."""
        seconds = np.zeros(len(self._program.names))
        for number in range(_WARM_UPS + runs):
            if number == _WARM_UPS:
                seconds[:] = 0
                begin = perf_counter()
            inputs = self._inputs(batch)
            self._program.run(batch.counts(), inputs, threads, seconds)
        total = perf_counter() - begin
        timed = zip(self._program.names, (seconds / runs).tolist(), strict=True)
        return Counted(total / runs, by_group(timed))
