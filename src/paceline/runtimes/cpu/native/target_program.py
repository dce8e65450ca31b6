"""Target forwards by native kernels: a whole step in one call.

Threads spin from the first operation to the last. Attention sums over a row's visible keys in path
order, in chunks of fixed length, wherever they are stored. So each token is computed and stored
once, and its logits do not depend on batch composition or draft shape.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from time import perf_counter

import numpy as np

from paceline.core import processor
from paceline.core import tree as trees
from paceline.core.types import ROOT, LogitArray, TokenTree
from paceline.models.config import ModelConfig, feature_layers, inverse_frequencies
from paceline.native.library import (
    KV_DTYPES,
    Heads,
    attends,
    has_bf16_dot,
    has_float_products,
    has_int8_products,
)
from paceline.native.packed import GROUP, LANES, Packed, fits, rotary_table
from paceline.native.program import Program
from paceline.runtimes.cpu.backend import Batch, Input, Steps
from paceline.runtimes.cpu.kv_formats import KvFormat
from paceline.runtimes.cpu.profile import Counted, by_group, native_kind
from paceline.runtimes.kv_cache import BLOCK, BlockPool, PagedCache


class PathBatch(Batch):
    """Layout of rows: visible keys are a run of the sequence's tokens, then drafted ancestors.

    Five numbers per row, see `Plan` in `native/kernels/visible_keys.hpp`.
    """

    def __init__(self) -> None:
        super().__init__()
        self._rows: list[int] = []
        self._tables: list[int] = []
        self._singles: list[int] = []

    def add(self, cache: PagedCache, tokens: Sequence[int], draft: TokenTree) -> int:
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
            rows += (position, slot, table, position + 1, 0)
        if straight:
            cache.places = list(range(behind, end))
            return first
        cache.places, runs, apart = _places(draft.parents.tolist(), behind)
        for place, run, singles in zip(cache.places, runs, apart, strict=True):
            slot = blocks[place // BLOCK] * BLOCK + place % BLOCK
            rows += (run + len(singles) - 1, slot, table, run, len(self._singles))
            self._singles += singles
        return first

    def inputs(self) -> dict[str, Input]:
        return {
            **self.common(),
            "rows": self._rows,
            "tables": self._tables,
            "singles": self._singles,
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


_WARM_UPS = 3


class NativeSteps(Steps):
    """Backend of one native program, for forwards of any size."""

    name = "paths"
    row_buckets = ()

    def __init__(
        self,
        config: ModelConfig,
        tensors: Mapping[str, np.ndarray],
        kv: KvFormat,
        threads: int,
        *,
        blocks: int,
        keep: int,
    ) -> None:
        """Reserve the key-value blocks.

        Raises:
            MemoryError: there is no memory for them.
        """
        self._config = config
        self._tensors = tensors
        self._threads = threads
        self._packed = Packed()
        assert kv.kv_dtype is not None  # `takes` has seen to it
        self._kv_dtype = kv.kv_dtype
        self.pool = BlockPool(
            config.layers,
            config.kv_heads,
            config.head_dim,
            blocks,
            keep=keep,
            dtype=kv.dtype,
            layout="pairs" if self._kv_dtype == "bf16" else "numbers",
        )
        self.seconds = 0.0
        self._rows: Mapping[str, int] = {}

    def start(self, extra: LogitArray) -> None:
        config, tensors = self._config, self._tensors
        if len(extra):
            tensors = {**tensors, "embed.extra": extra}
        kv_dtype = KV_DTYPES[self._kv_dtype]
        eps = float(config.norm_eps)
        heads = Heads(config.heads, config.kv_heads, config.head_dim, kv_dtype, eps)
        program = self._program = Program(self._packed, heads)
        width, attended = config.hidden_size, config.heads * config.head_dim
        stream = program.buffer("rows", width)
        qkv = program.buffer("rows", attended + 2 * config.kv_heads * config.head_dim)
        int8 = tensors["layers.0.o.weight"].dtype == np.int8
        together = attended // config.kv_heads % GROUP == 0
        mixed = program.buffer("rows", attended, rounded=int8 and together)
        inner = program.buffer("rows", config.ffn_size, rounded=int8)
        normed = program.buffer("rows", width, rounded=True) if int8 else stream
        features = program.buffer("features", 4 * width)
        angles = rotary_table(inverse_frequencies(config), config.max_context)
        read = feature_layers(config.layers)

        def feature(index: int, norm: LogitArray | None = None) -> None:
            program.gather(stream, "feature_rows", features.part(index * width, width), norm, eps)

        program.embed(tensors, "input_ids", stream)
        program.paths(config.max_context, "rows")
        for layer in range(config.layers):
            if layer in read:
                feature(read.index(layer))
            name = f"layers.{layer}"
            into, out, gate_up, down = (
                self._packed.matrix(tensors, f"{name}.{part}", gated=part == "gate_up")
                for part in ("qkv", "o", "gate_up", "down")
            )
            norm = tensors[f"{name}.attention_norm"]
            program.product(
                f"{name}.qkv", into, normed if layer else stream, qkv, norm=norm, eps=eps
            )
            memory = self.pool.memory[2 * layer : 2 * layer + 2]
            norms = [tensors.get(f"{name}.{kind}_norm") for kind in "qk"]
            program.attention(memory, angles, norms, qkv, mixed)
            norm = tensors[f"{name}.ffn_norm"]
            behind = (normed, norm) if int8 else None
            program.product(f"{name}.o", out, mixed, stream, residual=stream, behind=behind)
            program.product(f"{name}.gate_up", gate_up, normed, inner, norm=norm, eps=eps)
            following = tensors.get(f"layers.{layer + 1}.attention_norm")
            behind = (normed, following) if int8 and following is not None else None
            program.product(f"{name}.down", down, inner, stream, residual=stream, behind=behind)
        feature(3, tensors["norm"])
        hidden = program.buffer("logits", width)
        logits = program.buffer("logits", config.vocab_size)
        program.gather(stream, "logit_rows", hidden, tensors["norm"], eps)
        head = self._packed.matrix(tensors, _head(tensors))
        program.product("lm_head", head, hidden, logits)
        self._outputs = {"features": features, "hidden": hidden, "logits": logits}
        self._argmax = program.argmax(logits, "likeliest")

    def complete(self) -> None: ...

    def batch(self) -> Batch:
        return PathBatch()

    def run(self, batch: Batch) -> NativeSteps:
        self._rows = _rows(batch)
        begin = perf_counter()
        self._program.run(self._rows, batch.inputs(), self._threads)
        self.seconds = perf_counter() - begin
        return self

    def output(self, name: str) -> LogitArray:
        rows = self._rows["features" if name == "features" else "logits"]
        return self._program.read(self._outputs[name], rows)

    def argmax(self) -> list[int]:
        rows = self._rows["likeliest"]
        if not rows:
            return []
        numbers = self._program.read(self._argmax, rows)
        found: list[int] = numbers.view(np.int32)[:, 0].tolist()
        return found

    def counted(self, batch: Batch, runs: int) -> Counted:
        rows, inputs = _rows(batch), batch.inputs()
        seconds = np.zeros(len(self._program.names))
        for _ in range(_WARM_UPS):
            self._program.run(rows, inputs, self._threads, seconds)
        seconds[:] = 0
        begin = perf_counter()
        for _ in range(runs):
            self._program.run(rows, inputs, self._threads, seconds)
        total = perf_counter() - begin
        timed = zip(self._program.names, (seconds / runs).tolist(), strict=True)
        return Counted(total / runs, by_group((name, native_kind(name), s) for name, s in timed))

    def keep(self, cache: PagedCache, pending: int, path: Sequence[int]) -> None:
        start = cache.length + pending
        cache.move([cache.places[node] for node in path], start)
        cache.discard()
        cache.length = start + len(path)


def takes(
    config: ModelConfig, tensors: Mapping[str, np.ndarray], kv: KvFormat, quantised: bool
) -> bool:
    """Return whether native kernels support the model, its weights and cache on this processor.

    `quantised`: activations are to be int8.
    """
    weights = [array for name, array in tensors.items() if name.endswith(".weight")]
    kinds = {weight.dtype.type for weight in weights}
    if kinds == {np.int8}:
        able = quantised and processor.has("AVX512_CORE") and has_int8_products()
    else:
        able = kinds == {np.float32} and processor.has("AVX512_CORE") and has_float_products()
    heads = attends(config.heads, config.kv_heads, config.head_dim)
    cached = kv.kv_dtype is not None and (kv.kv_dtype != "bf16" or has_bf16_dot())
    return able and heads and cached and config.ffn_size % LANES == 0 and all(map(fits, weights))


def _rows(batch: Batch) -> dict[str, int]:
    return {
        "rows": len(batch.ids),
        "logits": len(batch.logit_rows),
        "features": len(batch.feature_rows),
        "likeliest": len(batch.logit_rows) if batch.argmax else 0,
    }


def _head(tensors: Mapping[str, np.ndarray]) -> str:
    return "lm_head" if "lm_head.weight" in tensors else "embed"
