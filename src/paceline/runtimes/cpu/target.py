"""CPU runtime: paged attention over ragged batches of token trees, in canonical arithmetic.

A token's logits depend on the model and the tokens that it sees, and on nothing else: not on the
batch, the draft, the threads or the processor.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from time import perf_counter

import numpy as np
import numpy.typing as npt

from paceline.core import tree as trees
from paceline.core.processor import usable_threads
from paceline.core.target import (
    DEFAULT_OPTIONS,
    Block,
    BlockOutput,
    Layer,
    Output,
    Pass,
    RuntimeOptions,
    check_blocks,
    split_blocks,
    without_logits,
)
from paceline.core.types import (
    ROOT,
    Capabilities,
    Denoises,
    Described,
    IntArray,
    LogitArray,
    TokenTree,
)
from paceline.errors import InvalidOption, OutOfMemory, RuntimeUnavailable
from paceline.models import families
from paceline.models.config import ModelConfig, feature_layers
from paceline.models.source import ModelSource
from paceline.models.weights import Weights
from paceline.native.library import CHeads, KvDtype, library
from paceline.native.packed import Packed
from paceline.native.program import Columns, Program
from paceline.networks.mask_rows import MaskRows
from paceline.networks.runner import Runner
from paceline.networks.weights import Trained
from paceline.runtimes.cpu import mask_rows
from paceline.runtimes.cpu.matrices import Matrices, check_precision
from paceline.runtimes.cpu.networks.runner import CpuRunner
from paceline.runtimes.cpu.ops import CpuOps, Rows
from paceline.runtimes.kv_cache import BLOCK, BlockPool, PagedCache
from paceline.runtimes.passes import no_rows, with_rows

# Prompt tokens per prefill pass.
_CHUNK = 512

# Default capacity of the key-value cache in tokens, and of prefixes retained from ended sequences.
KV_TOKENS = 65_536
PREFIX_TOKENS = 4_096

# Storage of keys and values by name.
KV_PRECISIONS: dict[str, KvDtype] = {"fp16": "fp16", "fp32": "fp32"}

# Subsets of layers that stay recorded.
_PARTIAL = 16
_WARM_UPS = 3
_NO_ROOM = "no memory to load the model: free some, or load a smaller model"


def check_kv_precision(precision: str) -> KvDtype:
    """Return the storage of keys and values of that name; raise InvalidOption if unknown."""
    if precision not in KV_PRECISIONS:
        raise InvalidOption(
            f"key-value cache precision {precision!r} is unknown: use {', '.join(KV_PRECISIONS)}"
        )
    return KV_PRECISIONS[precision]


class ForwardBatch:
    """Rows of one forward: what each sees is a run of its sequence's tokens, then single ones.

    Six numbers per row, see `Plan` in `native/kernels/visible_keys.hpp`.
    """

    def __init__(self) -> None:
        self.ids: list[int] = []
        self.logit_rows: list[int] = []
        self.feature_rows: list[int] = []
        self.argmax = False  # some pass asks for the argmax by row
        self.mask_rows: list[int] = []
        self._rows: list[int] = []
        self._tables: list[int] = []
        self._singles: list[int] = []

    def add(self, cache: PagedCache, tokens: Sequence[int], draft: TokenTree) -> int:
        """Add rows of pending `tokens`, after the cached ones, and of `draft` after them.

        Returns:
            The first row; the others follow in order, the draft's nodes by number.

        Raises:
            OutOfMemory: the cache cannot hold them.
        """
        # The first root-to-leaf path is stored first, so that keeping it moves nothing.
        cache.discard()
        past, behind = cache.length, cache.length + len(tokens)
        cache.reserve(len(tokens) + len(draft))
        table = len(self._tables)
        self._tables += cache.blocks[: -(-(behind + len(draft)) // BLOCK)]
        first = len(self.ids)
        self.ids += [*tokens, *draft.tokens.tolist()]
        blocks, rows = cache.blocks, self._rows
        straight = trees.is_chain(draft)
        end = behind + len(draft) if straight else behind
        for position in range(past, end):
            slot = blocks[position // BLOCK] * BLOCK + position % BLOCK
            rows += (position, slot, table, position + 1, 0, position + 1)
        if straight:
            cache.places = list(range(behind, end))
            return first
        cache.places, runs, apart = _places(draft.parents.tolist(), behind)
        for place, run, singles in zip(cache.places, runs, apart, strict=True):
            slot = blocks[place // BLOCK] * BLOCK + place % BLOCK
            seen = run + len(singles)
            rows += (seen - 1, slot, table, run, len(self._singles), seen)
            self._singles += singles
        return first

    def add_block(self, block: Block) -> None:
        """Add the rows of a block; raises OutOfMemory as `add`."""
        cache = block.cache
        cache.discard()
        past, count = cache.length, len(block.tokens)
        cache.reserve(count)
        cache.places = list(range(past + block.pending, past + count))
        table = len(self._tables)
        self._tables += cache.blocks[: -(-(past + count) // BLOCK)]
        wanted = range(count) if block.wanted is None else block.wanted.tolist()
        self.logit_rows += [len(self.ids) + row for row in wanted]
        self.ids += block.tokens.tolist()
        runs = [past] * count if block.cached is None else block.cached.tolist()
        for row, (position, run) in enumerate(zip(block.positions.tolist(), runs, strict=True)):
            slot = cache.blocks[(past + row) // BLOCK] * BLOCK + (past + row) % BLOCK
            sees = block.sees[row]
            # Rows behind the cached keys continue their run: a chain needs no single ones.
            lead = int(np.append(sees, False).argmin()) if run == past else 0
            run += lead
            singles = (past + lead + np.flatnonzero(sees[lead:])).tolist()
            seen = run + len(singles)
            self._rows += (position, slot, table, run, len(self._singles), seen)
            self._singles += singles

    def counts(self) -> dict[str, int]:
        return {
            "rows": len(self.ids),
            "logits": len(self.logit_rows),
            "features": len(self.feature_rows),
            "argmax": len(self.logit_rows) if self.argmax else 0,
            mask_rows.COUNT: len(self.mask_rows),
        }

    def inputs(self) -> dict[str, list[int] | npt.NDArray[np.int32]]:
        return {
            "input_ids": self.ids,
            "logit_rows": self.logit_rows,
            "feature_rows": self.feature_rows,
            "rows": self._rows,
            "tables": self._tables,
            "singles": self._singles,
            mask_rows.ROWS: self.mask_rows,
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


class Forward:
    """A model's forward as one native program."""

    def __init__(
        self,
        config: ModelConfig,
        matrices: Matrices,
        packed: Packed,
        pool: BlockPool,
        kv_dtype: KvDtype,
        extra: LogitArray,
        layers: Sequence[Layer] | None = None,
        given: bool = False,
        masks: mask_rows.PackedMaskRows | None = None,
    ) -> None:
        """Record it.

        Args:
            config: of the model.
            matrices: of the model.
            packed: holds them.
            pool: keys and values.
            kv_dtype: of the pool.
            extra: float32 `[m, hidden_size]`, embeddings after the vocabulary.
            layers: those to run; None for all.
            given: rows start from the input "inputs", not from embeddings.
            masks: adapter of mask rows.
        """
        self._masks = masks
        width = config.hidden_size
        self._program = program = Program(packed, CHeads(config.heads, config.kv_heads))
        ops = CpuOps(
            program,
            matrices,
            pool,
            kv_dtype,
            config.norm_eps,
            config.max_context,
            extra if len(extra) else None,
            masks,
        )
        program.paths(config.max_context, "rows")
        start = None
        if given:
            first = program.buffer("rows", width)
            program.load("inputs", first)
            start = ops.given(first, "rows")
        seen: list[Rows] = []
        states: list[Rows] = []
        x = families.forward(ops, config, layers=layers, x=start, features=seen, states=states)
        self._state: Columns | None = None
        if layers is not None or given:
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
        logits = families.head(ops, config, ops.given(self._hidden, "logits"))
        self._logits_rows = logits  # keeps its buffer
        self._logits: Columns = logits.columns()
        self._argmax = program.argmax(self._logits, "argmax")
        self.seconds, self._ran = 0.0, 0

    def run(self, batch: ForwardBatch, threads: int, given: LogitArray | None = None) -> None:
        begin = perf_counter()
        if self._masks is not None:
            batch.mask_rows = self._masks.rows(batch.ids)
        inputs = batch.inputs()
        if given is not None:
            inputs["inputs"] = np.ascontiguousarray(given, np.float32).reshape(-1).view(np.int32)
        self._program.run(batch.counts(), inputs, threads)
        self._ran = len(batch.ids)
        self.seconds = perf_counter() - begin

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

    def routes(self) -> list[LogitArray]:
        return [self._program.read(each.columns(), self._ran) for each in self._routes]

    def argmax(self, batch: ForwardBatch) -> list[int]:
        """Return the argmax by logit row; empty if no pass asked for it."""
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
            self._program.run(batch.counts(), batch.inputs(), threads, seconds)
        total = perf_counter() - begin
        timed = zip(self._program.names, (seconds / runs).tolist(), strict=True)
        return Counted(total / runs, by_group(timed))


class CpuTarget(Described):
    """A model on the CPU, by native kernels."""

    name = "cpu"
    guarantee = "bit-exact"

    def __init__(
        self,
        config: ModelConfig,
        weights: Weights,
        precision: str = "file",
        *,
        kv_tokens: int | None = None,
        prefix_tokens: int | None = None,
        threads: int | None = None,
        kv_precision: str | None = None,
    ) -> None:
        """Pack the weights and record the forward.

        Args:
            config: shape of the model.
            weights: its tensors.
            precision: "file" (as stored), "int8", "int4" or "fp32".
            kv_tokens: capacity of the key-value cache over all sequences; memory is used as it
                fills. Default `KV_TOKENS`.
            prefix_tokens: tokens retained from ended sequences for prefix sharing; 0 shares
                nothing. Default `PREFIX_TOKENS`.
            threads: default all cores this process may use.
            kv_precision: "fp16" or "fp32". Default fp16, fp32 at precision fp32.

        Raises:
            InvalidOption: unknown precision, or too small a cache.
            RuntimeUnavailable: the native kernels are not there and do not compile.
            ModelError: the kernels do not run this model's shapes.
            OutOfMemory: there is no memory for the model or the cache.
        """
        check_precision(precision)
        if library() is None:
            raise RuntimeUnavailable(
                "runtime 'cpu' needs its native kernels: install g++ or pip install ziglang, or "
                "use --runtime torch"
            )
        kv_precision = kv_precision or ("fp32" if precision == "fp32" else "fp16")
        kv_dtype = check_kv_precision(kv_precision)
        kv_tokens = KV_TOKENS if kv_tokens is None else kv_tokens
        prefix_tokens = PREFIX_TOKENS if prefix_tokens is None else prefix_tokens
        if kv_tokens < 2 * BLOCK or prefix_tokens < 0:
            raise InvalidOption(
                f"kv_tokens must be {2 * BLOCK} or more and prefix_tokens 0 or more, not "
                f"{kv_tokens} and {prefix_tokens}"
            )
        blocks = kv_tokens // BLOCK
        capacity = blocks * BLOCK
        self.config = config = replace(config, max_context=min(config.max_context, capacity))
        self.threads = usable_threads(threads)
        self._kv_tokens, self._kv_dtype = kv_tokens, kv_dtype
        self._packed = Packed()
        self.matrices = Matrices(weights, precision, self._packed, self.threads)
        self._extra = no_rows(config.hidden_size)
        self._masks: mask_rows.PackedMaskRows | None = None
        try:
            self._pool = BlockPool(
                config.layers,
                config.kv_heads,
                config.head_dim,
                blocks,
                keep=prefix_tokens // BLOCK,
                dtype=np.float16 if kv_dtype == "fp16" else np.float32,
            )
        except MemoryError as error:
            raise OutOfMemory(
                f"no memory for a key-value cache of {capacity} tokens: load the model with a "
                "smaller kv_tokens or a coarser kv_precision"
            ) from error
        self._forward = self._recorded()
        self._partial: dict[tuple[tuple[Layer, ...], bool], Forward] = {}
        self._capabilities = Capabilities(
            runtime="cpu",
            device="cpu",
            precision=precision,
            vocab_size=config.vocab_size,
            max_context=config.max_context,
            hidden_size=config.hidden_size,
            hidden_states=True,
            bit_exact=True,
            feature_layers=feature_layers(config.layers),
            kv_precision=kv_precision,
            kv_bytes_per_token=self._pool.bytes_per_token,
            blocks=True,
            denoises=config.denoises,
        )

    @classmethod
    def load(cls, source: ModelSource, options: RuntimeOptions = DEFAULT_OPTIONS) -> CpuTarget:
        """Load a model.

        Raises:
            InvalidOption: unknown precision or device, and as for the constructor.
            ModelError: the model is damaged or of a family that is unknown here.
            OutOfMemory: the model does not fit.
        """
        if options.device not in (None, "cpu"):
            raise InvalidOption(
                f"runtime 'cpu' runs on cpu, not {options.device!r}: use --runtime torch"
            )
        config = replace(source.config, max_context=options.limit(source.config.max_context))
        return cls(
            config,
            source.weights(),
            options.precision or ("file" if source.path.is_file() else "int8"),
            kv_tokens=options.kv_tokens,
            prefix_tokens=options.prefix_tokens,
            threads=options.threads,
            kv_precision=options.kv_precision,
        )

    @property
    def capabilities(self) -> Capabilities:
        return self._capabilities

    def run_network(self, trained: Trained) -> Runner:
        """Return a warm runner of a drafter network, in fp32 if the target is, else int8."""
        runner = CpuRunner(
            trained,
            self.matrices,
            self.threads,
            precision=self._capabilities.precision,
            max_context=self._capabilities.max_context,
            kv_tokens=self._kv_tokens,
            lent=self._pool,
        )
        runner.warm_up()
        return runner

    def add_embeddings(self, rows: LogitArray) -> int:
        """Add embeddings that draft nodes may carry in place of tokens.

        Logits of tokens do not change.

        Args:
            rows: float32 `[m, hidden_size]`, at least one.

        Returns:
            The id of the first row, at least `vocab_size`; the others follow it. Ids of rows added
            before stay.

        Raises:
            InvalidOption: no rows, another width, or values that are not finite.
        """
        table, first = with_rows(self._extra, rows)
        if table is not self._extra:
            self._extra = table
            self._forward = self._recorded()
            self._partial.clear()
        return self._capabilities.vocab_size + first

    def add_mask_rows(self, trained: MaskRows) -> None:
        """Let masked places be asked for, by rows that go through an adapter.

        Other rows do not change by a bit. `capabilities.denoises` tells the mask's id. Raises
        InvalidOption if the embedding has another width.
        """
        mask = self.add_embeddings(trained.embedding[None])
        self._masks = mask_rows.PackedMaskRows(trained, mask, self._packed)
        self._forward = self._recorded()
        self._partial.clear()
        facts = Denoises(mask, "causal", shifted=True, autoregressive=True)
        self._capabilities = replace(self._capabilities, denoises=facts)

    def trim_head(self, ids: IntArray) -> None:
        self.matrices.trim_head(ids)
        self._forward = self._recorded()
        self._partial.clear()

    @property
    def memory(self) -> BlockPool:
        return self._pool

    def warm_up(self) -> None: ...

    def open(self) -> PagedCache:
        return PagedCache(self._pool)

    def prefill(
        self, cache: PagedCache, tokens: Sequence[int], features: bool = False
    ) -> LogitArray | None:
        """Append `tokens` in chunks. Chunk boundaries do not change a bit of the cache."""
        width = len(self._capabilities.feature_layers) + 1
        seen = [np.zeros((0, width * self.config.hidden_size), dtype=np.float32)]
        for start in range(0, len(tokens), _CHUNK):
            chunk = list(tokens[start : start + _CHUNK])
            batch = ForwardBatch()
            first = batch.add(cache, chunk, trees.EMPTY)
            if features:
                batch.feature_rows += range(first, first + len(chunk))
            self._forward.run(batch, self.threads)
            cache.length += len(chunk)
            if features:
                seen.append(self._forward.output("features", batch).copy())
        return np.concatenate(seen) if features else None

    def forward(self, passes: Sequence[Pass]) -> list[Output]:
        """Run one ragged forward. Logits and features are views that the next one overwrites."""
        if not passes:
            return []
        batch, spans = self._batch(passes)
        forward = self._forward
        forward.run(batch, self.threads)
        logits = forward.output("logits", batch)
        hidden = forward.output("hidden", batch) if any(each.hidden for each in passes) else None
        features = forward.output("features", batch) if batch.feature_rows else None
        argmax = forward.argmax(batch)
        return [
            Output(
                logits[rows],
                hidden[rows].copy() if each.hidden and hidden is not None else None,
                features[read] if each.features and features is not None else None,
                argmax[rows] if each.argmax else (),
            )
            for each, (rows, read) in zip(passes, spans, strict=True)
        ]

    @property
    def inference_seconds(self) -> float:
        """Return the time of the last forward, without inputs and outputs."""
        return self._forward.seconds

    def forward_blocks(
        self, blocks: Sequence[Block], layers: Sequence[Layer] | None = None, logits: bool = True
    ) -> list[BlockOutput]:
        if not logits:
            blocks = without_logits(blocks)
        given = check_blocks(blocks, layers, self.config.layers)
        chosen = tuple(range(self.config.layers) if layers is None else layers)
        forward = self._partial.pop((chosen, given), None) or self._recorded(chosen, given)
        self._partial[chosen, given] = forward  # the last used stands last
        if len(self._partial) > _PARTIAL:
            del self._partial[next(iter(self._partial))]
        batch = ForwardBatch()
        try:
            for each in blocks:
                batch.add_block(each)
        except OutOfMemory:
            for each in blocks:
                each.cache.discard()
            raise
        inputs = [each.inputs for each in blocks if each.inputs is not None]
        forward.run(batch, self.threads, np.concatenate(inputs) if inputs else None)
        return split_blocks(blocks, forward.output("logits", batch), forward.output("state", batch))

    def routes(self) -> list[LogitArray]:
        """Return the weights of the experts in the last `forward`, by layer that has experts.

        Views of float32 `[rows, experts]` that the next forward overwrites, rows in the order of
        the passes; 0 where a row does not use an expert.
        """
        return self._forward.routes()

    def counted(self, passes: Sequence[Pass], runs: int) -> Counted:
        """Repeat a forward and return the time of its parts; it commits nothing."""
        return self._forward.counted(self._batch(passes)[0], self.threads, runs)

    def keep(self, cache: PagedCache, pending: int, path: Sequence[int]) -> None:
        start = cache.length + pending
        cache.move([cache.places[node] for node in path], start)
        cache.discard()
        cache.length = start + len(path)

    def truncate(self, cache: PagedCache, length: int) -> None:
        cache.truncate(length)

    def rewind(self, cache: PagedCache, length: int) -> None:
        cache.discard()
        cache.length = length

    def fork(self, cache: PagedCache) -> PagedCache:
        return cache.fork()

    def release(self, cache: PagedCache) -> None:
        cache.release()

    def _recorded(self, layers: Sequence[Layer] | None = None, given: bool = False) -> Forward:
        parts = self.config, self.matrices, self._packed, self._pool, self._kv_dtype, self._extra
        try:
            return Forward(*parts, layers, given, self._masks)
        except MemoryError as error:
            raise OutOfMemory(_NO_ROOM) from error

    def _batch(self, passes: Sequence[Pass]) -> tuple[ForwardBatch, list[tuple[slice, slice]]]:
        batch = ForwardBatch()
        try:
            spans = [_add(batch, each) for each in passes]
        except OutOfMemory:
            for each in passes:  # their branches would keep others from trying with less
                each.cache.discard()
            raise
        return batch, spans


def _add(batch: ForwardBatch, each: Pass) -> tuple[slice, slice]:
    # Returns the pass's slices of the logit rows and of the feature rows.
    logits, features = len(batch.logit_rows), len(batch.feature_rows)
    draft = each.draft or trees.EMPTY
    first = batch.add(each.cache, each.pending, draft)
    last, behind = first + len(each.pending) - 1, first + len(each.pending) + len(draft)
    batch.logit_rows += range(last, behind)
    if each.features:
        batch.feature_rows += range(first, behind)
    batch.argmax = batch.argmax or each.argmax
    return slice(logits, len(batch.logit_rows)), slice(features, len(batch.feature_rows))
