"""The CPU runtime: paged attention over ragged batches of token trees, bit-exact by construction.

Two facts, both tested, make a token's logits the same numbers however its pass was composed:

* Attention over one query row takes another kernel than over several. So no subsequence ever
  enters attention with a single row: a plain step sends its row twice and keeps one result.
* Attention groups sums by the distance between keys. So a branch must see its keys without gaps:
  in layout "exact" every root-to-leaf path is a subsequence of its own in attention.

Everything else (matrix products, norms) is computed row by row with the same result whatever the
other rows are.

And one fact about speed: a change of shape makes the plugin prepare every node again, which costs
a third of a step. So rows are padded to a few sizes, and the small ones get a compiled instance of
fixed shape (`openvino_requests`).
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import openvino as ov

from paceline import tree as trees
from paceline.errors import InvalidOption
from paceline.models.config import ModelConfig, feature_layers
from paceline.models.source import ModelSource
from paceline.runtimes.openvino_batch import ROW_BUCKETS, Batch, Shape, tree_bias
from paceline.runtimes.openvino_graph import Tensors, build, fix_rows
from paceline.runtimes.openvino_requests import Instance, Requests
from paceline.runtimes.openvino_weights import load_prepared
from paceline.runtimes.paged_cache import BLOCK, BlockPool, PagedCache
from paceline.runtimes.quantise import check_precision
from paceline.target import DEFAULT_OPTIONS, Output, Pass, RuntimeOptions
from paceline.types import Capabilities, Layout, LogitArray

_CHUNK = 512
"""Prompt tokens per prefill pass."""

_QUANTISATION_GROUP = 64
"""Activations per dynamic quantisation scale. 32 is more exact (KL against fp32 0.006, not 0.008)
but makes forwards over 8 to 16 rows 7% slower; larger groups gain little more."""


class OpenVinoTarget:
    """A Llama-family model on the CPU through OpenVINO."""

    def __init__(
        self,
        config: ModelConfig,
        tensors: Tensors,
        precision: str,
        *,
        layout: Layout = "exact",
        kv_tokens: int = 65_536,
        threads: int | None = None,
    ) -> None:
        """Build and compile the graph.

        Args:
            config: shape of the model.
            tensors: weights from `openvino_weights.prepare`.
            precision: what `tensors` were packed as.
            layout: "exact" (bit-exact branches) or "masked" (one packed tree under a mask:
                cheaper attention, approximate).
            kv_tokens: capacity of the key-value cache over all sequences; memory is used as it
                fills, not reserved.
            threads: default all cores this process may use.
        """
        if layout not in ("exact", "masked"):
            raise InvalidOption(f"layout {layout!r} is unknown: use exact or masked")
        self._layout = layout
        context = config.max_context
        cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
        self.threads = threads or cores or 1
        settings = {
            "PERFORMANCE_HINT": "LATENCY",
            "NUM_STREAMS": "1",
            "INFERENCE_NUM_THREADS": str(self.threads),
            "INFERENCE_PRECISION_HINT": "f32",
            "KV_CACHE_PRECISION": "f32",
            "DYNAMIC_QUANTIZATION_GROUP_SIZE": str(
                0 if precision == "fp32" else _QUANTISATION_GROUP
            ),
        }
        self._tensors = tensors  # the graph shares their memory
        core = ov.Core()
        general, direct = build(config, tensors), build(config, tensors, direct=True)
        pool = BlockPool(config.layers, config.kv_heads, config.head_dim, kv_tokens // BLOCK)
        self._pool = pool
        [self._scratch] = pool.take(1)

        # Without `self`: a cycle would keep gigabytes alive until the next garbage collection.
        def compile_request(shape: Shape | None) -> ov.InferRequest:
            graph = general
            if shape is not None:
                graph = fix_rows(direct if shape.dense == shape.attention else general, shape)
            request = core.compile_model(graph, "CPU", settings).create_infer_request()
            for layer in range(config.layers):
                for offset, kind in enumerate(("key", "value")):
                    blocks = ov.Tensor(pool.memory[2 * layer + offset], shared_memory=True)
                    request.set_tensor(f"{kind}_cache.{layer}", blocks)
            return request

        size = sum(array.nbytes for array in tensors.values())
        self._requests = Requests(compile_request, size)
        self._capabilities = Capabilities(
            runtime="openvino",
            device="cpu",
            precision=precision,
            vocab_size=config.vocab_size,
            max_context=context,
            hidden_size=config.hidden_size,
            hidden_states=True,
            bit_exact=layout == "exact",
            layout=layout,
            row_buckets=ROW_BUCKETS,
            feature_layers=feature_layers(config.layers),
        )

    @classmethod
    def load(cls, source: ModelSource, options: RuntimeOptions = DEFAULT_OPTIONS) -> OpenVinoTarget:
        """Load a model, keeping its prepared weights on disk for the next start.

        Raises:
            InvalidOption: unknown precision, layout or device.
            ModelError: the model is damaged or not of the Llama family.
        """
        if options.device not in (None, "cpu"):
            raise InvalidOption(
                f"runtime 'openvino' runs on cpu, not {options.device!r}: use --runtime torch"
            )
        precision = check_precision(options.precision or "int8")
        config = replace(source.config, max_context=options.limit(source.config.max_context))
        return cls(
            config,
            load_prepared(source, precision),
            precision,
            layout=options.layout or "exact",
            threads=options.threads,
        )

    @property
    def capabilities(self) -> Capabilities:
        """What this target can do."""
        return self._capabilities

    def warm_up(self) -> None:
        """Compile the instances of fixed shape that use would bring about."""
        self._requests.complete()

    def open(self) -> PagedCache:
        """A new, empty cache."""
        return PagedCache(self._pool)

    def prefill(
        self, cache: PagedCache, tokens: Sequence[int], features: bool = False
    ) -> LogitArray | None:
        """Append `tokens` in chunks. Where chunks end does not change a bit of the cache."""
        cache.discard()
        seen = [np.zeros((0, 4 * self._capabilities.hidden_size), dtype=np.float32)]
        for start in range(0, len(tokens), _CHUNK):
            chunk = list(tokens[start : start + _CHUNK])
            batch = Batch()
            past = cache.length
            cache.reserve(max(len(chunk), 2))
            first = batch.rows(chunk, range(past, past + len(chunk)))
            batch.subsequence(list(range(first, first + len(chunk))), past, cache.blocks)
            batch.logit_rows.append(first)  # the LM head needs a row; its result is not used
            if features:
                batch.feature_rows += range(first, first + len(chunk))
            outcome = self._infer(batch)
            cache.length += len(chunk)
            if features:
                seen.append(outcome.output("features").copy())
        return np.concatenate(seen) if features else None

    def forward(self, passes: Sequence[Pass], rows: int = 0) -> list[Output]:
        """One ragged forward. Logits are views that the next forward overwrites."""
        batch = Batch()
        spans = [self._add(batch, each) for each in passes]
        batch.pad(self._scratch, rows)
        outcome = self._infer(batch)
        logits = outcome.output("logits")
        hidden = outcome.output("hidden") if any(each.hidden for each in passes) else None
        features = outcome.output("features") if batch.feature_rows else None
        return [
            Output(
                logits[rows],
                hidden[rows].copy() if each.hidden and hidden is not None else None,
                features[read].copy() if each.features and features is not None else None,
            )
            for each, (rows, read) in zip(passes, spans, strict=True)
        ]

    def keep(self, cache: PagedCache, pending: int, path: Sequence[int]) -> None:
        """Commit pending tokens and path: adopt the path's blocks, or move its rows (masked)."""
        if self._layout == "exact":
            cache.adopt(pending, path)
            return
        start = cache.length + pending
        if list(path) != list(range(len(path))):
            cache.move([start + node for node in path], start)
        cache.length = start + len(path)

    def truncate(self, cache: PagedCache, length: int) -> None:
        """Forget all cached tokens from position `length` on."""
        cache.truncate(length)

    def fork(self, cache: PagedCache) -> PagedCache:
        """An independent cache with the same content; blocks are copied when written."""
        return cache.fork()

    def release(self, cache: PagedCache) -> None:
        """Give the cache's blocks back."""
        cache.release()

    def _add(self, batch: Batch, each: Pass) -> tuple[slice, slice]:
        """Add one pass's dense rows and subsequences to the batch.

        Returns:
            Which rows of the logits and of the features are the pass's.
        """
        cache: PagedCache = each.cache
        logits, features = len(batch.logit_rows), len(batch.feature_rows)
        cache.discard()
        past, count = cache.length, len(each.pending)
        draft = each.draft or trees.EMPTY
        root = past + count - 1
        depths = trees.depths(draft).tolist()
        positions = [*range(past, past + count), *(root + depth for depth in depths)]
        first = batch.rows([*each.pending, *draft.tokens.tolist()], positions)
        pending = list(range(first, first + count))
        nodes = first + count
        batch.logit_rows += range(nodes - 1, nodes + len(draft))
        if each.features:
            batch.feature_rows += range(first, nodes + len(draft))
        spans = slice(logits, len(batch.logit_rows)), slice(features, len(batch.feature_rows))
        if self._layout == "masked":
            total = count + len(draft)
            cache.reserve(max(total, 2))
            bias = None if trees.is_chain(draft) else tree_bias(draft, count)
            batch.subsequence(list(range(first, first + total)), past, cache.blocks, bias)
            return spans
        paths = trees.leaf_paths(draft) or [()]
        cache.reserve(max(count + len(paths[0]), 2))
        cache.branches.append((paths[0], None))
        batch.subsequence(pending + [nodes + n for n in paths[0]], past, cache.blocks)
        for path in paths[1:]:
            blocks = cache.branch(path, count + len(path))
            batch.subsequence(pending + [nodes + n for n in path], past, blocks)
        return spans

    def _infer(self, batch: Batch) -> Instance:
        """Run the graph; its outputs are "logits", "hidden" and "features"."""
        instance = self._requests.get(Shape(len(batch.ids), len(batch.attention_rows)))
        instance.run(batch.inputs())
        return instance
