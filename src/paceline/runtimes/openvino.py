"""The CPU runtime: paged attention over ragged batches of token trees, bit-exact by construction.

Attention gives a token the same numbers however its pass was composed, and everything else (matrix
products, norms) is computed row by row with the same result whatever the other rows are. That is so
in our own operations (`native_steps`), and, where those cannot be compiled or do not take a model,
in graphs that the plugin runs (`openvino_plugin`).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from paceline import tree as trees
from paceline.errors import InvalidOption, OutOfMemory, RuntimeUnavailable
from paceline.models.config import ModelConfig, feature_layers
from paceline.models.source import ModelSource
from paceline.networks.runner import Runner
from paceline.networks.weights import Trained
from paceline.processor import usable_threads
from paceline.runtimes import native_network_fit
from paceline.runtimes.extra_embeddings import no_rows, with_rows
from paceline.runtimes.native_runner import NativeRunner
from paceline.runtimes.native_steps import NativeSteps, takes
from paceline.runtimes.openvino_batch import Batch
from paceline.runtimes.openvino_nodes import Tensors
from paceline.runtimes.openvino_plugin import PluginSteps
from paceline.runtimes.openvino_profile import Counted
from paceline.runtimes.openvino_requests import NO_ROOM
from paceline.runtimes.openvino_runner import OpenVinoRunner
from paceline.runtimes.openvino_settings import (
    KV_FORMATS,
    check_kv_precision,
    check_processor,
    plugin_settings,
    products_are_exact,
    quantises_activations,
)
from paceline.runtimes.openvino_steps import Outcome, Steps
from paceline.runtimes.openvino_weights import load_prepared
from paceline.runtimes.paged_cache import BLOCK, BlockPool, PagedCache
from paceline.runtimes.quantise import Precision, check_precision
from paceline.target import DEFAULT_OPTIONS, Output, Pass, RuntimeOptions
from paceline.types import Capabilities, Layout, LogitArray

KV_TOKENS = 65_536
"""Tokens that may be cached by default."""

PREFIX_TOKENS = 4_096
"""Tokens of ended sequences that are kept by default: 180 MiB for a model of 135M weights."""

_CHUNK = 512
"""Prompt tokens per prefill pass."""


class OpenVinoTarget:
    """A Llama-family model on the CPU through OpenVINO."""

    def __init__(
        self,
        config: ModelConfig,
        tensors: Tensors,
        precision: Precision,
        *,
        layout: Layout = "exact",
        kv_tokens: int = KV_TOKENS,
        prefix_tokens: int = PREFIX_TOKENS,
        threads: int | None = None,
        kv_precision: str | None = None,
        attention: str | None = None,
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
            prefix_tokens: how much of it is kept of ended sequences, for others that begin alike;
                0 shares nothing. Nothing is shared either where rows depend on how they were
                batched: layout "masked", precision "int4", coarse caches.
            threads: default all cores this process may use.
            kv_precision: of the key-value cache: "fp32" (exact), "fp16", or "u8" (lossy). Default
                fp16 in our own operations at int8, whose rounding is hundreds of times as coarse;
                else fp32.
            attention: "paths" (all by our own operations), "plugin", or None for the first that can
                be had.

        Raises:
            InvalidOption: unknown layout or cache precision.
            RuntimeUnavailable: the processor lacks instructions that attention needs, or "paths"
                was asked for and cannot be had.
            OutOfMemory: there is no memory for the model or the cache.
        """
        if layout not in ("exact", "masked"):
            raise InvalidOption(f"layout {layout!r} is unknown: use exact or masked")
        self._layout = layout
        if kv_tokens < 2 * BLOCK or prefix_tokens < 0:
            raise InvalidOption(
                f"kv_tokens must be {2 * BLOCK} or more and prefix_tokens 0 or more, not "
                f"{kv_tokens} and {prefix_tokens}"
            )
        if attention not in (None, "paths", "plugin"):
            raise InvalidOption(f"attention {attention!r} is unknown: use paths or plugin")
        context = min(config.max_context, kv_tokens // BLOCK * BLOCK)
        check_processor()
        kv = check_kv_precision(kv_precision or "fp32")
        quantised = quantises_activations(precision)
        self.threads = usable_threads(threads)
        settings = plugin_settings(self.threads, kv, quantised)
        self._tensors = tensors  # the graph shares their memory
        self._settings = plugin_settings(self.threads, KV_FORMATS["fp32"], quantised)
        self._kv_tokens = kv_tokens
        # Shared rows must be those that their new holder would have computed, to the last bit.
        same = layout == "exact" and products_are_exact(config, precision, quantised)
        blocks = kv_tokens // BLOCK
        own = attention != "plugin" and layout == "exact"
        own = own and takes(config, tensors, kv, quantised)
        if attention == "paths" and not own:
            raise RuntimeUnavailable(
                "attention 'paths' needs a C++ compiler, int8 or fp32 weights, a processor with "
                "AVX-512 (VNNI for int8), layout exact and a cache of fp32 or fp16"
            )
        if own and kv_precision is None and precision == "int8":
            kv_precision = "fp16"
            kv = check_kv_precision(kv_precision)
        kept = prefix_tokens // BLOCK if same and (own or kv_precision in (None, "fp32")) else 0
        try:
            self._steps: Steps = (
                NativeSteps(config, tensors, kv, self.threads, blocks=blocks, keep=kept)
                if own
                else PluginSteps(config, tensors, kv, settings, layout, blocks=blocks, keep=kept)
            )
        except MemoryError as error:
            raise OutOfMemory(
                f"no memory for a key-value cache of {blocks * BLOCK} tokens: load the model with "
                "a smaller kv_tokens or a coarser kv_precision"
            ) from error
        self._extra = no_rows(config.hidden_size)
        self._start()
        self.inference_seconds = 0.0
        """What the last forward spent inside the plugin."""
        self._capabilities = Capabilities(
            runtime="openvino",
            device="cpu",
            precision=precision,
            vocab_size=config.vocab_size,
            max_context=context,
            hidden_size=config.hidden_size,
            hidden_states=True,
            bit_exact=layout == "exact" and products_are_exact(config, precision, quantised),
            layout=layout,
            attention=self._steps.name,
            row_buckets=self._steps.row_buckets,
            feature_layers=feature_layers(config.layers),
            kv_precision=kv_precision or "fp32",
            kv_lossy=kv.lossy,
            kv_bytes_per_token=self._steps.pool.bytes_per_token,
        )

    @classmethod
    def load(cls, source: ModelSource, options: RuntimeOptions = DEFAULT_OPTIONS) -> OpenVinoTarget:
        """Load a model, keeping its prepared weights on disk for the next start.

        Raises:
            InvalidOption: unknown precision, layout or device, and as for `OpenVinoTarget`.
            ModelError: the model is damaged or not of the Llama family.
            OutOfMemory: the model does not fit.
        """
        if options.device not in (None, "cpu"):
            raise InvalidOption(
                f"runtime 'openvino' runs on cpu, not {options.device!r}: use --runtime torch"
            )
        precision = check_precision(options.precision or "int8")
        check_kv_precision(options.kv_precision or "fp32")  # before anything takes long
        check_processor()
        config = replace(source.config, max_context=options.limit(source.config.max_context))
        try:
            tensors = load_prepared(source, precision)
        except MemoryError as error:
            raise OutOfMemory(NO_ROOM) from error
        return cls(
            config,
            tensors,
            precision,
            layout=options.layout or "exact",
            kv_tokens=KV_TOKENS if options.kv_tokens is None else options.kv_tokens,
            prefix_tokens=(
                PREFIX_TOKENS if options.prefix_tokens is None else options.prefix_tokens
            ),
            threads=options.threads,
            kv_precision=options.kv_precision,
        )

    @property
    def capabilities(self) -> Capabilities:
        """What this target can do."""
        return self._capabilities

    def run_network(self, trained: Trained) -> Runner:
        """Make a drafter network ready to run, as the target does if it can: in the same precision,
        or int8."""
        own = self._capabilities
        sizes = {"max_context": own.max_context, "kv_tokens": self._kv_tokens}
        runner: NativeRunner | OpenVinoRunner
        if own.attention == "paths" and native_network_fit.takes(trained.network, own.precision):
            runner = NativeRunner(
                trained, self._tensors, self.threads, precision=own.precision, **sizes
            )
        else:
            runner = OpenVinoRunner(
                trained, self._tensors, self._settings, precision=own.precision, **sizes
            )
        runner.warm_up()
        return runner

    def add_embeddings(self, rows: LogitArray) -> int:
        """Let nodes of drafts carry embeddings in place of tokens.

        The graph is compiled again; what it makes of tokens stays the same to the last bit.

        Args:
            rows: float32 `[m, hidden_size]`, at least one.

        Returns:
            The id of the first row, at least `vocab_size`; the others follow it. Rows that were
            added before keep their ids.

        Raises:
            InvalidOption: the rows are none, of another width, or not finite.
            OutOfMemory: the graph does not fit a second time.
        """
        table, first = with_rows(self._extra, rows)
        if table is not self._extra:
            self._extra = table
            self._start()
        return self._capabilities.vocab_size + first

    @property
    def memory(self) -> BlockPool:
        """The key-value memory of all sequences."""
        return self._steps.pool

    def warm_up(self) -> None:
        """Compile the instances of fixed shape that use would bring about."""
        self._steps.complete()

    def open(self) -> PagedCache:
        """A new, empty cache."""
        return PagedCache(self._steps.pool)

    def prefill(
        self, cache: PagedCache, tokens: Sequence[int], features: bool = False
    ) -> LogitArray | None:
        """Append `tokens` in chunks. Where chunks end does not change a bit of the cache."""
        seen = [np.zeros((0, 4 * self._capabilities.hidden_size), dtype=np.float32)]
        for start in range(0, len(tokens), _CHUNK):
            chunk = list(tokens[start : start + _CHUNK])
            batch = self._steps.batch()
            first = batch.add(cache, chunk, trees.EMPTY)
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
        if not passes:
            return []
        batch, spans = self._batch(passes, rows)
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

    def counted(self, passes: Sequence[Pass], runs: int) -> Counted:
        """Repeat a forward on an instance whose nodes count their time; it commits nothing."""
        return self._steps.counted(self._batch(passes, 0)[0], runs)

    def keep(self, cache: PagedCache, pending: int, path: Sequence[int]) -> None:
        """Commit the pending tokens and a path."""
        self._steps.keep(cache, pending, path)

    def truncate(self, cache: PagedCache, length: int) -> None:
        """Forget all cached tokens from position `length` on."""
        cache.truncate(length)

    def fork(self, cache: PagedCache) -> PagedCache:
        """An independent cache with the same content; blocks are copied when written."""
        return cache.fork()

    def release(self, cache: PagedCache) -> None:
        """Give the cache's blocks back."""
        cache.release()

    def _start(self) -> None:
        """Make ready with the embeddings that there are."""
        try:
            self._steps.start(self._extra)
        except MemoryError as error:
            raise OutOfMemory(NO_ROOM) from error

    def _batch(self, passes: Sequence[Pass], rows: int) -> tuple[Batch, list[tuple[slice, slice]]]:
        """The inputs of a forward, and what `_add` says of each pass."""
        batch = self._steps.batch()
        try:
            spans = [self._add(batch, each) for each in passes]
        except OutOfMemory:
            for each in passes:  # their branches would keep others from trying with less
                each.cache.discard()
            raise
        self._steps.pad(batch, rows)
        return batch, spans

    def _add(self, batch: Batch, each: Pass) -> tuple[slice, slice]:
        """Add one pass's rows to the batch.

        Returns:
            Which rows of the logits and of the features are the pass's.
        """
        logits, features = len(batch.logit_rows), len(batch.feature_rows)
        draft = each.draft or trees.EMPTY
        first = batch.add(each.cache, each.pending, draft)
        last, behind = first + len(each.pending) - 1, first + len(each.pending) + len(draft)
        batch.logit_rows += range(last, behind)
        if each.features:
            batch.feature_rows += range(first, behind)
        return slice(logits, len(batch.logit_rows)), slice(features, len(batch.feature_rows))

    def _infer(self, batch: Batch) -> Outcome:
        """Run a forward."""
        outcome = self._steps.run(batch)
        self.inference_seconds = outcome.seconds
        return outcome
