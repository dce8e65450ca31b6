"""The CPU runtime: paged attention over ragged batches of token trees, bit-exact by construction.

Attention gives a token the same numbers however its pass was composed, and everything else (matrix
products, norms) is computed row by row with the same result whatever the other rows are. That is so
in our own operations (`native_steps`), and, where those cannot be compiled or do not take a model,
in graphs that the plugin runs (`openvino_plugin`).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from paceline.errors import InvalidOption, OutOfMemory
from paceline.models.config import ModelConfig
from paceline.models.source import ModelSource
from paceline.networks.runner import Runner
from paceline.networks.weights import Trained
from paceline.processor import usable_threads
from paceline.runtimes.extra_embeddings import no_rows, with_rows
from paceline.runtimes.openvino_forwards import Forwards
from paceline.runtimes.openvino_makers import make_runner, make_steps
from paceline.runtimes.openvino_nodes import Tensors
from paceline.runtimes.openvino_plan import plan
from paceline.runtimes.openvino_profile import Counted
from paceline.runtimes.openvino_requests import NO_ROOM
from paceline.runtimes.openvino_settings import check_kv_precision, check_processor
from paceline.runtimes.openvino_weights import load_prepared
from paceline.runtimes.paged_cache import BlockPool, PagedCache
from paceline.runtimes.quantise import Precision, check_precision
from paceline.target import DEFAULT_OPTIONS, Output, Pass, RuntimeOptions
from paceline.types import Capabilities, Layout, LogitArray


class OpenVinoTarget:
    """A Llama-family model on the CPU through OpenVINO."""

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
        """Build and compile the graph.

        Args:
            config: shape of the model.
            tensors: weights from `openvino_weights.prepare`.
            precision: what `tensors` were packed as.
            layout: as for `openvino_plan.plan`, and so are the others not named here.
            threads: default all cores this process may use.

        Raises:
            InvalidOption: as for `openvino_plan.plan`.
            RuntimeUnavailable: likewise.
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
            kv_tokens=options.kv_tokens,
            prefix_tokens=options.prefix_tokens,
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
        return make_runner(trained, self._tensors, self._plan, self.threads, self._capabilities)

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
        return self._forwards.prefill(cache, tokens, features)

    def forward(self, passes: Sequence[Pass], rows: int = 0) -> list[Output]:
        """One ragged forward. Logits are views that the next forward overwrites."""
        return self._forwards.forward(passes, rows)

    @property
    def inference_seconds(self) -> float:
        """What the last forward took, inputs and outputs left out."""
        return self._forwards.seconds

    def counted(self, passes: Sequence[Pass], runs: int) -> Counted:
        """Repeat a forward on an instance whose nodes count their time; it commits nothing."""
        return self._forwards.counted(passes, runs)

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
