"""CPU runtime: paged attention over ragged batches of token trees, bit-exact by construction.

A token's logits do not depend on batch composition, in the native kernels and in the OpenVINO
graphs that replace them where they do not compile or do not fit the model.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from paceline.core import tree as trees
from paceline.core.processor import usable_threads
from paceline.core.target import DEFAULT_OPTIONS, Output, Pass, RuntimeOptions
from paceline.core.types import Capabilities, Layout, LogitArray
from paceline.errors import InvalidOption, OutOfMemory
from paceline.models.config import ModelConfig
from paceline.models.source import ModelSource
from paceline.networks.runner import Runner
from paceline.networks.weights import Trained
from paceline.runtimes.cpu.backend import NO_ROOM, Batch, Outcome, Steps
from paceline.runtimes.cpu.kv_formats import check_kv_precision, check_processor
from paceline.runtimes.cpu.plan import make_runner, make_steps, plan
from paceline.runtimes.cpu.profile import Counted
from paceline.runtimes.kv_cache import BlockPool, PagedCache
from paceline.runtimes.passes import no_rows, with_rows
from paceline.runtimes.weights import Precision, Tensors, check_precision, load_prepared

# Prompt tokens per prefill pass.
_CHUNK = 512


class Forwards:
    """Run passes on a backend.

    Attributes:
        seconds: inference time of the last forward, without inputs and outputs.
    """

    def __init__(self, steps: Steps, hidden_size: int) -> None:
        self.seconds = 0.0
        self._steps = steps
        self._hidden_size = hidden_size

    def prefill(
        self, cache: PagedCache, tokens: Sequence[int], features: bool = False
    ) -> LogitArray | None:
        """Append `tokens` in chunks. Chunk boundaries do not change a bit of the cache."""
        seen = [np.zeros((0, 4 * self._hidden_size), dtype=np.float32)]
        for start in range(0, len(tokens), _CHUNK):
            chunk = list(tokens[start : start + _CHUNK])
            batch = self._steps.batch()
            first = batch.add(cache, chunk, trees.EMPTY)
            batch.logit_rows.append(first)  # the LM head needs a row; its result is not used
            if features:
                batch.feature_rows += range(first, first + len(chunk))
            outcome = self._run(batch)
            cache.length += len(chunk)
            if features:
                seen.append(outcome.output("features").copy())
        return np.concatenate(seen) if features else None

    def forward(self, passes: Sequence[Pass], rows: int) -> list[Output]:
        """Run one ragged forward, padded to the bucket of `rows` rows at least.

        Logits and features are views that the next forward overwrites.
        """
        if not passes:
            return []
        batch, spans = self._batch(passes, rows)
        outcome = self._run(batch)
        logits = outcome.output("logits")
        hidden = outcome.output("hidden") if any(each.hidden for each in passes) else None
        features = outcome.output("features") if batch.feature_rows else None
        argmax = outcome.argmax()
        return [
            Output(
                logits[rows],
                hidden[rows].copy() if each.hidden and hidden is not None else None,
                features[read] if each.features and features is not None else None,
                argmax[rows] if each.argmax else (),
            )
            for each, (rows, read) in zip(passes, spans, strict=True)
        ]

    def counted(self, passes: Sequence[Pass], runs: int) -> Counted:
        """Repeat a forward with node timers; it commits nothing."""
        return self._steps.counted(self._batch(passes, 0)[0], runs)

    def _batch(self, passes: Sequence[Pass], rows: int) -> tuple[Batch, list[tuple[slice, slice]]]:
        batch = self._steps.batch()
        try:
            spans = [_add(batch, each) for each in passes]
        except OutOfMemory:
            for each in passes:  # their branches would keep others from trying with less
                each.cache.discard()
            raise
        self._steps.pad(batch, rows)
        return batch, spans

    def _run(self, batch: Batch) -> Outcome:
        outcome = self._steps.run(batch)
        self.seconds = outcome.seconds
        return outcome


def _add(batch: Batch, each: Pass) -> tuple[slice, slice]:
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


class OpenVinoTarget:
    """A Llama-family target on the CPU, by native kernels or OpenVINO."""

    def __init__(
        self,
        config: ModelConfig,
        tensors: Tensors,
        precision: Precision,
        *,
        layout: Layout = "exact",
        kv_tokens: int | None = None,
        prefix_tokens: int | None = None,
        threads: int | None = None,
        kv_precision: str | None = None,
        attention: str | None = None,
    ) -> None:
        """Plan and prepare the backend.

        Args:
            config: shape of the model.
            tensors: prepared weights; the backend shares their memory.
            precision: precision that `tensors` were packed in.
            layout: as for `plan`, like the arguments not named here.
            threads: default all cores this process may use.

        Raises:
            InvalidOption, RuntimeUnavailable: as for `plan`.
            OutOfMemory: there is no memory for the model or the cache.
        """
        self._plan = plan(
            config,
            tensors,
            precision,
            layout=layout,
            kv_tokens=kv_tokens,
            prefix_tokens=prefix_tokens,
            kv_precision=kv_precision,
            attention=attention,
        )
        self.threads = usable_threads(threads)
        self._tensors = tensors  # the graph shares their memory
        self._steps = make_steps(config, tensors, self._plan, self.threads)
        self._forwards = Forwards(self._steps, config.hidden_size)
        self._extra = no_rows(config.hidden_size)
        self._start()
        self._capabilities = self._plan.capabilities(config, precision, self._steps)

    @classmethod
    def load(cls, source: ModelSource, options: RuntimeOptions = DEFAULT_OPTIONS) -> OpenVinoTarget:
        """Load a model; its prepared weights are stored on disk for the next start.

        Raises:
            InvalidOption: unknown precision, layout or device, and as for `plan`.
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
            kv_tokens=options.kv_tokens,
            prefix_tokens=options.prefix_tokens,
            threads=options.threads,
            kv_precision=options.kv_precision,
        )

    @property
    def capabilities(self) -> Capabilities:
        return self._capabilities

    def run_network(self, trained: Trained) -> Runner:
        """Return a runner of a drafter network, in fp32 if the target is, else int8."""
        return make_runner(trained, self._tensors, self._plan, self.threads, self._capabilities)

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
            OutOfMemory: the recompiled graph does not fit.
        """
        table, first = with_rows(self._extra, rows)
        if table is not self._extra:
            self._extra = table
            self._start()
        return self._capabilities.vocab_size + first

    @property
    def memory(self) -> BlockPool:
        return self._steps.pool

    def warm_up(self) -> None:
        self._steps.complete()

    def open(self) -> PagedCache:
        return PagedCache(self._steps.pool)

    def prefill(
        self, cache: PagedCache, tokens: Sequence[int], features: bool = False
    ) -> LogitArray | None:
        return self._forwards.prefill(cache, tokens, features)

    def forward(self, passes: Sequence[Pass], rows: int = 0) -> list[Output]:
        return self._forwards.forward(passes, rows)

    @property
    def inference_seconds(self) -> float:
        """Return the inference time of the last forward, without inputs and outputs."""
        return self._forwards.seconds

    def counted(self, passes: Sequence[Pass], runs: int) -> Counted:
        return self._forwards.counted(passes, runs)

    def keep(self, cache: PagedCache, pending: int, path: Sequence[int]) -> None:
        self._steps.keep(cache, pending, path)

    def truncate(self, cache: PagedCache, length: int) -> None:
        cache.truncate(length)

    def fork(self, cache: PagedCache) -> PagedCache:
        return cache.fork()

    def release(self, cache: PagedCache) -> None:
        cache.release()

    def _start(self) -> None:
        try:
            self._steps.start(self._extra)
        except MemoryError as error:
            raise OutOfMemory(NO_ROOM) from error
