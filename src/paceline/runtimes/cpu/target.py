"""CPU runtime: paged attention over ragged batches of token trees, in canonical arithmetic.

A token's logits depend on the model and the tokens that it sees, and on nothing else: not on the
batch, the draft, the threads or the processor.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from paceline.core.processor import usable_threads
from paceline.core.rows import RowStore
from paceline.core.target import (
    DEFAULT_OPTIONS,
    NO_LOGITS,
    Head,
    Layer,
    Output,
    Rows,
    Runtime,
    RuntimeOptions,
    have_inputs,
    sink_rows,
)
from paceline.core.types import CanvasTraits, IntArray, LogitArray
from paceline.errors import InvalidOption, ModelError, OutOfMemory, RuntimeUnavailable
from paceline.models.config import ModelConfig, features_with
from paceline.models.families.whisper import check_frames, check_sight, needs_sound
from paceline.models.source import ModelSource
from paceline.models.weights import Weights
from paceline.native.library import KvDtype, library
from paceline.native.packed import LANES, Packed
from paceline.networks.mask_rows import MaskRows
from paceline.networks.runner import Runner
from paceline.networks.weights import Trained
from paceline.runtimes.cpu.encoder import CpuSound, MemoryWriter
from paceline.runtimes.cpu.forward import Counted, Forward, ForwardBatch
from paceline.runtimes.cpu.mask_rows import PackedMaskRows
from paceline.runtimes.cpu.matrices import Matrices, check_precision
from paceline.runtimes.cpu.networks.runner import CpuRunner
from paceline.runtimes.kv_cache import BLOCK, BlockPool, PagedCache, cache_bytes
from paceline.runtimes.states import SequenceState, StateShape

# Prompt tokens per prefill pass.
_CHUNK = 512

# Default capacity of the key-value cache in tokens, and of prefixes retained from ended sequences.
KV_TOKENS = 65_536
PREFIX_TOKENS = 4_096

# Storage of keys and values by name.
KV_PRECISIONS: dict[str, KvDtype] = {"fp16": "fp16", "fp32": "fp32"}
_NUMBERS: dict[KvDtype, type[np.generic]] = {"fp16": np.float16, "fp32": np.float32}

# Subsets of layers that stay recorded.
_PARTIAL = 16
_NO_ROOM = "no memory to load the model: free some, or load a smaller model"


def check_kv_precision(precision: str) -> KvDtype:
    """Return the storage of keys and values of that name; raise InvalidOption if unknown."""
    if precision not in KV_PRECISIONS:
        raise InvalidOption(
            f"key-value cache precision {precision!r} is unknown: use {', '.join(KV_PRECISIONS)}"
        )
    return KV_PRECISIONS[precision]


def _kv_precision(precision: str) -> KvDtype:
    return "fp32" if precision == "fp32" else "fp16"


def full_cache_bytes(source: ModelSource, options: RuntimeOptions) -> int:
    """Return the bytes of a model's cache once it is full; `CpuTarget` takes them as it fills."""
    tokens = KV_TOKENS if options.kv_tokens is None else options.kv_tokens
    kind = options.kv_precision or _kv_precision(options.precision or source.precision)
    return cache_bytes(source.config, tokens, _NUMBERS[check_kv_precision(kind)])


def _state_shape(config: ModelConfig) -> StateShape | None:
    heads, taps = config.state_heads, config.taps
    widths = (config.hidden_size,) if heads is None else (heads.key_width, heads.value_width)
    if taps > 8 or (taps and any(width % LANES for width in widths)):
        what = "short convolutions" if heads is None else "states"
        raise ModelError(
            f"{what} of width {' and '.join(map(str, widths))} over {taps} rows do not run here "
            f"(multiples of {LANES}, at most 8 rows): use --runtime torch"
        )
    return StateShape.of(config)


class CpuTarget(Runtime):
    """A model on the CPU, by native kernels."""

    name = "cpu"
    guarantee = "bit-exact"
    changes = frozenset({"mask_rows", "head"})

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
        mask_rows: MaskRows | None = None,
        head: Head | None = None,
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
            mask_rows, head: see `Runtime.changes`; other rows do not change by a bit.

        Raises:
            InvalidOption: unknown precision, too small a cache, or mask rows of another width.
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
        kv_precision = kv_precision or _kv_precision(precision)
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
        self._kv_tokens = kv_tokens
        self._packed = Packed()
        self.matrices = Matrices(weights, precision, self._packed, self.threads)
        kept = None if head is None else head(config.vocab_size)
        if kept is not None:
            self.matrices.trim_head(kept)
        self.rows = RowStore(config.vocab_size, config.hidden_size)
        self._boundaries: tuple[int, ...] = ()
        self._masks: PackedMaskRows | None = None
        denoises = config.denoises
        if mask_rows is not None:
            config.refuse_added_embeddings()
            mask = self.rows.append(mask_rows.embedding[None])
            self._masks = PackedMaskRows(mask_rows, mask, self._packed)
            denoises = CanvasTraits(mask, "causal", shifted=True, autoregressive=True)
        try:
            self._pool = BlockPool(
                len(config.attention_layers),
                config.kv_heads,
                config.head_dim,
                blocks,
                keep=prefix_tokens // BLOCK,
                dtype=_NUMBERS[kv_dtype],
                state=_state_shape(config),
                shapes=config.kv_shapes,
            )
        except MemoryError as error:
            raise OutOfMemory(
                f"no memory for a key-value cache of {capacity} tokens: load the model with a "
                "smaller kv_tokens or a coarser kv_precision"
            ) from error
        self._writer: MemoryWriter | None = None
        self._grower: MemoryWriter | None = None  # once a sound comes in parts
        if config.encoder is not None:
            parts = config, config.encoder, self.matrices, self._packed
            try:
                self._writer = MemoryWriter(*parts, self._pool.dtype.type)
            except MemoryError as error:
                raise OutOfMemory(_NO_ROOM) from error
        self._forward = self._recorded()
        self._partial: dict[tuple[tuple[Layer, ...] | None, bool], Forward] = {}
        self.capabilities = replace(
            config.capabilities("cpu", "cpu", precision),
            bit_exact=True,
            kv_precision=kv_precision,
            kv_bytes_per_token=self._pool.bytes_per_token,
            embeddings=not config.layer_inputs,
            paged=True,
            endless=config.slides,
            timed=True,
            head=None if kept is None else tuple(kept.tolist()),
            denoises=denoises,
        )

    @classmethod
    def load(
        cls, source: ModelSource, options: RuntimeOptions = DEFAULT_OPTIONS, **changes: Any
    ) -> CpuTarget:
        """Load a model; `changes` are the constructor's.

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
            options.precision or source.precision,
            kv_tokens=options.kv_tokens,
            prefix_tokens=options.prefix_tokens,
            threads=options.threads,
            kv_precision=options.kv_precision,
            **changes,
        )

    def run_network(self, trained: Trained) -> Runner:
        """Return a warm runner of a drafter network, in fp32 if the target is, else int8."""
        lent = self._pool
        if trained.network.reads_target:
            self.config.refuse_to_lend(trained.network.name, trained.network.config)
        if trained.network.looks:
            self.config.refuse_to_look(trained.network.name)
            assert self._writer is not None
            lent = self._writer.pool
        runner = CpuRunner(
            trained,
            self.matrices,
            self.threads,
            precision=self.capabilities.precision,
            max_context=self.capabilities.max_context,
            kv_tokens=self._kv_tokens,
            lent=lent,
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
            InvalidOption: as of `RowStore.append`; or layers of the model read tokens too.
        """
        self.config.refuse_added_embeddings()
        return self.rows.append(rows)

    def read_boundaries(self, boundaries: Sequence[int]) -> list[int]:
        more, places = features_with(self.config.layers, self._boundaries, boundaries)
        if more != self._boundaries:
            self._boundaries = more
            self._forward = self._recorded()
            self._partial.clear()
        return places

    @property
    def memory(self) -> BlockPool:
        return self._pool

    def warm_up(self) -> None: ...

    def open(self) -> PagedCache:
        if self._writer is not None:
            raise needs_sound(self.config.family)
        return self.open_to_go_back(0)

    @property
    def mels(self) -> int:
        return 0 if self.config.encoder is None else self.config.encoder.mels

    def open_to(self, memory: PagedCache) -> PagedCache:
        return PagedCache(self._pool, memory=memory.fork())

    def heard(self, cache: PagedCache, layer: int, every: int = 1) -> LogitArray:
        assert cache.memory is not None
        return cache.memory.read(layer, every)

    def encode(self, frames: LogitArray) -> PagedCache:
        return next(each for each in self.encoding(frames) if each is not None)

    def encoding(self, frames: LogitArray) -> Iterator[PagedCache | None]:
        check_frames(self.config, frames)
        assert self._writer is not None
        return self._writer.write(frames, self.threads)

    @property
    def longest_sound(self) -> int:
        return 0 if self.config.encoder is None else self.config.encoder.rows

    def hear(self, frames: LogitArray, sees: IntArray, heard: CpuSound | None = None) -> CpuSound:
        past = 0 if heard is None else heard.memory.length
        shape = check_frames(self.config, frames, past)
        check_sight(sees, past)
        if self._grower is None:
            assert self._writer is not None
            parts = self.config, shape, self.matrices, self._packed, self._pool.dtype.type
            try:
                self._grower = MemoryWriter(*parts, beside=self._writer)
            except MemoryError as error:
                raise OutOfMemory(_NO_ROOM) from error
        sound = self._grower.begin() if heard is None else heard
        try:
            self._grower.go_on(sound, frames, sees, self.threads)
        except OutOfMemory:
            if heard is None:
                sound.release()
            raise
        return sound

    def let_go(self, heard: CpuSound) -> None:
        heard.release()

    def open_to_go_back(self, tokens: int) -> PagedCache:
        states = self._pool.states
        state = None if states is None else SequenceState(states, tokens)
        return PagedCache(self._pool, state=state)

    def prefill(
        self, cache: PagedCache, tokens: Sequence[int], features: bool = False
    ) -> LogitArray | None:
        """Append `tokens` in chunks. Chunk boundaries do not change a bit of the cache."""
        width = len(self.capabilities.feature_layers) + 1 + len(self._boundaries)
        seen = [np.zeros((0, width * self.config.hidden_size), dtype=np.float32)]
        start = 0
        while start < len(tokens):
            size = cache.unmarked(min(_CHUNK, len(tokens) - start))
            chunk = list(tokens[start : start + size])
            start += size
            rows = Rows.draft(cache, chunk, wanted=NO_LOGITS, features=features)
            batch, _ = ForwardBatch.of([rows])
            self._forward.run(batch, self.threads)
            self.keep(cache, size, ())
            if features:
                seen.append(self._forward.output("features", batch).copy())
        return np.concatenate(seen) if features else None

    def forward(self, rows: Sequence[Rows], layers: Sequence[Layer] | None = None) -> list[Output]:
        if not rows:
            return []
        given = have_inputs(
            rows, layers, self.config.layers, bool(self.config.recurrent), self.config.lenders
        )
        whole = layers is None and not given
        forward = self._forward if whole else self._part(layers, given)
        batch, spans = ForwardBatch.of(rows)
        inputs = [each.inputs for each in rows if each.inputs is not None] if given else []
        forward.run(batch, self.threads, np.concatenate(inputs) if given else None)
        logits = forward.output("logits", batch)
        hidden = forward.output("hidden", batch) if any(each.hidden for each in rows) else None
        features = forward.output("features", batch) if batch.feature_rows else None
        argmax = forward.argmax(batch)
        found = [
            Output(
                logits[wanted],
                hidden[wanted].copy() if each.hidden and hidden is not None else None,
                features[read] if each.features and features is not None else None,
                argmax[wanted] if each.argmax else (),
            )
            for each, (wanted, read) in zip(rows, spans, strict=True)
        ]
        if layers is None:
            return found
        states = np.split(forward.output("state", batch), np.cumsum(list(map(len, rows)))[:-1])
        return [out._replace(state=state) for out, state in zip(found, states, strict=True)]

    @property
    def inference_seconds(self) -> float:
        """Return the time of the last forward of all layers, without inputs and outputs."""
        return self._forward.seconds

    def routes(self) -> list[LogitArray]:
        """Return the weights of the experts in the last `forward`, by layer that has experts.

        Views of float32 `[rows, experts]` that the next forward overwrites, in the order of its
        rows; 0 where a row does not use an expert.
        """
        return self._forward.routes()

    def counted(self, rows: Sequence[Rows], runs: int) -> Counted:
        """Repeat a forward and return the time of its parts; it commits nothing."""
        return self._forward.counted(ForwardBatch.of(rows)[0], self.threads, runs)

    def keep(self, cache: PagedCache, num_new: int, path: Sequence[int]) -> None:
        start = cache.length + num_new
        cache.move([cache.places[node] for node in path], start - cache.gone)
        if cache.state is not None:
            self._keep_state(cache.state, num_new, path)
        cache.discard()
        cache.length = start + len(path)

    def _keep_state(self, state: SequenceState, num_new: int, path: Sequence[int]) -> None:
        if state.recorded(num_new):
            path = [*range(num_new), *(num_new + node for node in path)]
        state.keep(self._forward.records(state), path)
        state.mark(BLOCK)

    def slide(self, cache: PagedCache, sinks: Sequence[int]) -> None:
        cache.reserve(len(sinks))  # before anything has changed
        cache.leave()
        batch, _ = ForwardBatch.of([sink_rows(cache, sinks)])
        self._forward.run(batch, self.threads)
        cache.renew()

    def truncate(self, cache: PagedCache, length: int, hold: bool = False) -> None:
        cache.truncate(length, hold)

    def fork(self, cache: PagedCache) -> PagedCache:
        return cache.fork()

    def release(self, cache: PagedCache) -> None:
        cache.release()

    def _recorded(self, layers: Sequence[Layer] | None = None, given: bool = False) -> Forward:
        parts = self.config, self.matrices, self._packed, self._pool, self.rows
        try:
            memory = None if self._writer is None else self._writer.pool
            return Forward(*parts, layers, given, self._masks, self._boundaries, memory)
        except MemoryError as error:
            raise OutOfMemory(_NO_ROOM) from error

    def _part(self, layers: Sequence[Layer] | None, given: bool) -> Forward:
        key = None if layers is None else tuple(layers), given
        forward = self._partial.pop(key, None) or self._recorded(layers, given)
        self._partial[key] = forward  # the last used stands last
        if len(self._partial) > _PARTIAL:
            del self._partial[next(iter(self._partial))]
        return forward
