"""Runner of drafter networks as OpenVINO graphs: chains in one call, and batched steps of trees.

A row sees every earlier row of its block table, so each branch has a table of its own: full
blocks are shared with its parent, the last is copied.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import openvino as ov

from paceline.core.types import Layout, LogitArray
from paceline.models.config import ModelConfig
from paceline.networks.base import Network
from paceline.networks.runner import Branch, Chain, ContextUpdate, Tail, chains
from paceline.networks.weights import Trained
from paceline.runtimes.cpu.backend import Input
from paceline.runtimes.cpu.kv_formats import GROUP, KvFormat
from paceline.runtimes.cpu.openvino.attention import PluginSteps
from paceline.runtimes.cpu.openvino.graph import Tensors, core
from paceline.runtimes.cpu.openvino.ops import OpenVinoOps, begun, build, model
from paceline.runtimes.cpu.openvino.requests import Instance
from paceline.runtimes.kv_cache import BLOCK, BlockPool, PagedCache
from paceline.runtimes.weights import packed

Asked = tuple[Branch, Sequence[int]]

# Branches are padded to these sizes: fixed shapes save shape inference, which costs small
# networks more than idle rows do.
_SIZES = (1, 2, 4, 8)


@dataclass(frozen=True, slots=True)
class State:
    """State of a branch.

    Attributes:
        value: float32 `[slots, ...]`, state of the network.
        table: block table of the rows that its steps wrote; None before the first.
    """

    value: LogitArray
    table: PagedCache | None = None


class BranchOps(OpenVinoOps):
    """Ops of one step of branches: one attention subsequence per branch."""

    def attend_draft(self, layer: int, queries: Any, keys: Any, values: Any) -> Any:
        slots = queries.get_output_partial_shape(0)[1].get_length()
        return self._attend(layer, (queries, keys, values), self._rotation, self._paging, slots)


def build_start(network: Network, tensors: Tensors, max_context: int) -> ov.Model:
    """Build the graph that prefills context rows, with inputs as for `build`.

    Outputs, float32: `state`, and `logits` `[s, width, draft vocabulary]` of the first step.
    """
    ops, state = begun(network, tensors, max_context)
    outputs = {"logits": network.logits(ops, state, 0), "state": state}
    return model(outputs, ops.inputs.parameters, network.name)


class Branches:
    """One step of any number of branches per run.

    Graph inputs: `above` float32, parent states; `tokens` int32 `[branches, width]`; where a step
    attends, paging as for `build`, a subsequence per branch. Outputs, float32: `state` and
    `logits` `[branches, width, draft vocabulary]`.
    """

    def __init__(
        self,
        network: Network,
        tensors: Tensors,
        max_context: int,
        pool: BlockPool,
        compiled: Callable[[ov.Model], Instance],
    ) -> None:
        """Bind the network, whose step must have the same weights at every depth."""
        self._parts = network, tensors, max_context
        self._width = network.width
        self._pool = pool
        self._compiled = compiled
        ops, state = begun(*self._parts)
        self._drafted = ops.drafted
        self._shape = list(state.get_output_partial_shape(0))
        names = {port.get_any_name() for port in self._graph(0).inputs}
        self._names = names
        self._attends = "past_lens" in names
        self._instances: dict[int, Instance] = {}

    def advance(self, asked: Sequence[Asked]) -> list[Branch]:
        count = len(asked)
        size = next((each for each in _SIZES if each >= count), 0)
        idle = max(size - count, 0)
        rows = [*asked, *[asked[0]] * idle]
        tables = [self._table(branch) for branch, _ in asked] if self._attends else [None] * count
        inputs: dict[str, Input] = {
            "above": np.stack([branch.state.value for branch, _ in rows]),
            "tokens": np.array([tokens for _, tokens in rows], dtype=np.int32),
        }
        if self._attends:
            left = [branch.cache.left for branch, _ in asked]
            inputs |= self._paging([each for each in tables if each is not None], left, idle)
        if size not in self._instances:
            self._instances[size] = self._compiled(self._graph(size))
        instance = self._instances[size]
        instance.run({name: each for name, each in inputs.items() if name in self._names})
        states, logits = (instance.output(name)[:count].copy() for name in ("state", "logits"))
        out = []
        for (branch, tokens), table, state, row in zip(asked, tables, states, logits, strict=True):
            if table is not None:
                table.length += self._width
            out.append(Branch(branch.cache, branch, tokens, State(state, table), row))
        return out

    def _table(self, branch: Branch) -> PagedCache:
        above = branch.state.table
        if above is None:
            own = branch.cache.paged
            # Rows that the first step wrote behind the context are seen by every branch.
            above = PagedCache(self._pool, own.blocks, own.length + self._drafted)
        table: PagedCache = above.fork()
        branch.cache.branches.append(table)
        table.reserve(self._width)
        return table

    def _paging(
        self, tables: Sequence[PagedCache], left: Sequence[int], idle: int
    ) -> dict[str, Input]:
        width = self._width
        past = [*(table.length for table in tables), *[0] * idle]
        gone = [*left, *[0] * idle]
        blocks = [*(table.blocks for table in tables), *[[self._pool.scratch]] * idle]
        return {
            "positions": [
                place + begin + away
                for begin, away in zip(past, gone, strict=True)
                for place in range(width)
            ],
            "past_lens": past,
            "subsequence_begins": list(range(0, (len(past) + 1) * width, width)),
            "block_indices": [block for each in blocks for block in each],
            "block_indices_begins": np.cumsum([0, *map(len, blocks)]).tolist(),
            "max_context_len": max(past) + width,
            "qq_bias_begins": [0] * (len(past) + 1),
        }

    def _graph(self, size: int) -> ov.Model:
        # Size 0 stands for a dynamic number of branches.
        network, ops = self._parts[0], BranchOps(*self._parts)
        above = ops.inputs.add("above", np.float32, self._shape)
        tokens = ops.inputs.add("tokens", np.int32, [-1, network.width])
        state = network.advance(ops, above, tokens, 1)
        outputs = {"logits": network.logits(ops, state, 1), "state": state}
        read = [each for each in ops.inputs.parameters if each.output(0).get_target_inputs()]
        graph = model(outputs, read, network.name)
        if size:
            begins = ("subsequence_begins", "block_indices_begins", "qq_bias_begins")
            counts = {
                **dict.fromkeys(("above", "tokens", "past_lens"), size),
                **dict.fromkeys(begins, size + 1),
                "positions": size * network.width,
            }
            ports = {port.get_any_name(): port.get_partial_shape() for port in graph.inputs}
            shapes = {
                name: [counts[name], *list(ports[name])[1:]] for name in counts if name in ports
            }
            graph.reshape({name: ov.PartialShape(each) for name, each in shapes.items()})
        return graph


# Context rows per prefill run.
_CHUNK = 512

# Depths compiled beside the deepest: a step too many costs little, a graph per depth slows start.
_STEPS = (2, 3)

# Row counts of fixed-shape graphs for one sequence. Rows are padded to the next of these; the
# padding's cache rows are overwritten before any row sees them.
_FEW = (1, 4, 8)


@dataclass(eq=False, slots=True)
class NetworkCache:
    """Context rows of one sequence.

    Attributes:
        paged: keys and values of the network's layers.
        tail: the last context tokens.
        left: rows dropped from the cache by a sliding window.
        branches: block tables of branches until the next draft.
    """

    paged: PagedCache
    tail: Tail
    left: int = 0
    branches: list[PagedCache] = field(default_factory=list)

    def prune(self) -> None:
        """Release the blocks of all branches."""
        for table in self.branches:
            table.release()
        self.branches.clear()

    def slide(self, reach: int) -> None:
        """Drop blocks outside a sliding window of `reach` rows; 0 keeps all."""
        while reach and self.paged.length + 1 - reach >= BLOCK:
            self.paged.pool.drop([self.paged.blocks.pop(0)])
            self.paged.length -= BLOCK
            self.left += BLOCK


class OpenVinoRunner:
    """A compiled drafter network. Implements `networks.runner.Runner`."""

    def __init__(
        self,
        trained: Trained,
        target: Mapping[str, np.ndarray],
        settings: Mapping[str, str],
        *,
        precision: str,
        max_context: int,
        kv_tokens: int,
    ) -> None:
        """Pack the weights; graphs are compiled on first use.

        Args:
            trained: network and parameters.
            target: the target's prepared weights: embedding, head and shared layers.
            settings: plugin properties.
            precision: of the network's matrices: "fp32", or any other for int8.
            max_context: longest sequence.
            kv_tokens: capacity of the network's own cache over all sequences.

        Raises:
            InvalidOption: the target lacks layers whose weights the network shares.
        """
        network = self._network = trained.network
        self._ids = trained.draft_ids
        self._settings = dict(settings)
        self._max_context = max_context + network.depth + 1
        self._tensors = packed(trained, target, precision)
        geometry = network.geometry
        self._pool = BlockPool(
            max(network.layers, 1),
            geometry.kv_heads,
            geometry.head_dim,
            kv_tokens // BLOCK,
            keep=0,
        )
        self._instances: dict[tuple[int, int], Instance] = {}
        self._branches: Branches | None = None

    @property
    def depth(self) -> int:
        return self._network.depth

    def warm_up(self) -> None:
        """Compile the graphs of a single sequence."""
        most = self._network.steps
        for steps in {min(each, most) for each in (*_STEPS, most)}:
            for rows in _FEW:
                self._instance(steps, rows)

    def open(self) -> NetworkCache:
        return NetworkCache(PagedCache(self._pool), Tail(self._network))

    def release(self, cache: NetworkCache) -> None:
        cache.prune()
        cache.paged.release()

    def draft(self, context_update: Sequence[ContextUpdate], depth: int) -> list[Chain]:
        instance = self._take_in(context_update, -(-depth // self._network.width))
        if not depth:
            return []
        drafted, chances = instance.output("drafted"), instance.output("chances")
        return chains(self._network, drafted, chances, depth)

    def start(self, context_update: Sequence[ContextUpdate]) -> list[Branch]:
        instance = self._take_in(context_update, 0)
        states, logits = instance.output("state").copy(), instance.output("logits").copy()
        return [
            Branch(each.cache, None, (), State(state), row)
            for each, state, row in zip(context_update, states, logits, strict=True)
        ]

    def advance(self, asked: Sequence[Asked]) -> list[Branch]:
        if self._branches is None:
            parts = self._network, self._tensors, self._max_context
            self._branches = Branches(*parts, self._pool, self._compile)
        return self._branches.advance(asked)

    def hidden(self, branch: Branch) -> LogitArray:
        state: State = branch.state
        return state.value

    def _take_in(self, context_update: Sequence[ContextUpdate], steps: int) -> Instance:
        rest = []
        for each in context_update:
            *heads, last = each.parts(_CHUNK)
            for head in heads:
                self._run([head], 0)
            rest.append(last)
        return self._run(rest, steps)

    def _run(self, context_update: Sequence[ContextUpdate], steps: int) -> Instance:
        counts = [len(each.tokens) for each in context_update]
        fixed = next((size for size in _FEW if len(context_update) == 1 and counts[0] <= size), 0)
        steps = self._at_least(steps)
        instance = self._instance(steps, fixed)
        idle = max(0, fixed - counts[0])
        last_rows = np.cumsum(counts) - 1
        picked = [*range(sum(counts)), *[sum(counts) - 1] * idle]
        windows = np.concatenate([each.cache.tail.windows(each.tokens) for each in context_update])
        inputs: dict[str, Input] = {
            "tokens": windows[picked].astype(np.int32),
            "last_rows": last_rows.tolist(),
        }
        if self._network.reads_features:
            inputs["features"] = np.concatenate([each.features for each in context_update])[picked]
        if self._network.layers:
            inputs |= self._paging(context_update, idle, max(steps, 1) * self._network.width)
        instance.run(inputs)
        for each in context_update:
            each.cache.paged.length += len(each.tokens)
            each.cache.tail.extend(each.tokens)
        return instance

    def _at_least(self, steps: int) -> int:
        sizes = (0, *_STEPS, self._network.steps)
        return min((size for size in sizes if steps <= size <= self._network.steps), default=steps)

    def _paging(
        self, context_update: Sequence[ContextUpdate], idle: int, depth: int
    ) -> dict[str, Input]:
        for each in context_update:
            each.cache.prune()
            each.cache.slide(self._network.reach)
        past = [each.cache.paged.length for each in context_update]
        after = [p + len(each.tokens) for p, each in zip(past, context_update, strict=True)]
        ends = [end + idle for end in after]
        left = [each.cache.left for each in context_update]
        blocks: list[int] = []
        block_begins = [0]
        for each in context_update:
            each.cache.paged.reserve(len(each.tokens) + max(depth, idle))
            blocks += each.cache.paged.blocks
            block_begins.append(len(blocks))
        return {
            "positions": [
                place + gone
                for begin, end, gone in zip(past, ends, left, strict=True)
                for place in range(begin, end)
            ],
            "past_lens": past,
            "subsequence_begins": np.cumsum(
                [0, *(end - begin for begin, end in zip(past, ends, strict=True))]
            ).tolist(),
            "block_indices": blocks,
            "block_indices_begins": block_begins,
            "max_context_len": max(after) + max(depth, idle),
            "qq_bias_begins": [0] * (len(context_update) + 1),
            "draft_past": after,
            "draft_positions": [a + gone for a, gone in zip(after, left, strict=True)],
            "draft_begins": list(range(len(context_update) + 1)),
        }

    def _instance(self, steps: int, rows: int) -> Instance:
        # 0 steps: the graph that starts branches; 0 rows: any number of sequences and rows.
        if (steps, rows) not in self._instances:
            network = self._network
            if steps:
                graph = build(network, self._tensors, self._ids, steps, self._max_context)
            else:
                graph = build_start(network, self._tensors, self._max_context)
            if rows:
                graph.reshape(_fixed(graph, rows))
            self._instances[steps, rows] = self._compile(graph)
        return self._instances[steps, rows]

    def _compile(self, graph: ov.Model) -> Instance:
        request = core().compile_model(graph, "CPU", self._settings).create_infer_request()
        names = {port.get_any_name() for port in graph.inputs}
        for layer in range(self._network.layers):
            for offset, kind in enumerate(("key", "value")):
                blocks = ov.Tensor(self._pool.memory[2 * layer + offset], shared_memory=True)
                if f"{kind}_cache.{layer}" in names:
                    request.set_tensor(f"{kind}_cache.{layer}", blocks)
        return Instance(request)


def _fixed(graph: ov.Model, rows: int) -> dict[str, ov.PartialShape]:
    by_rows = ("features", "tokens", "positions")
    one = ("last_rows", "past_lens", "draft_past", "draft_positions")
    two = ("subsequence_begins", "block_indices_begins", "qq_bias_begins", "draft_begins")
    shapes = {}
    for port in graph.inputs:
        name, shape = port.get_any_name(), port.get_partial_shape()
        size = rows if name in by_rows else 1 if name in one else 2 if name in two else None
        shapes[name] = shape if size is None else ov.PartialShape([size, *list(shape)[1:]])
    return shapes


# Entry to the plugin: backend of a target, and runners of its drafter networks.

_KV_SETTINGS = {
    "fp32": {"KV_CACHE_PRECISION": "f32"},
    "fp16": {"KV_CACHE_PRECISION": "f16"},
    # By default a key's scale depends on its neighbours in the block, drafted ones included.
    "u8": {"KV_CACHE_PRECISION": "u8", "KEY_CACHE_QUANT_MODE": "BY_TOKEN"},
}


def make_steps(
    config: ModelConfig,
    tensors: Mapping[str, np.ndarray],
    kv: KvFormat,
    layout: Layout,
    threads: int,
    *,
    kv_precision: str,
    quantised: bool,
    blocks: int,
    keep: int,
) -> PluginSteps:
    """Build the backend; raise MemoryError if the key-value cache does not fit."""
    settings = _settings(threads, kv_precision, quantised)
    return PluginSteps(config, tensors, kv, settings, layout, blocks=blocks, keep=keep)


def make_runner(
    trained: Trained,
    tensors: Mapping[str, np.ndarray],
    threads: int,
    *,
    quantised: bool,
    **sizes: Any,
) -> OpenVinoRunner:
    """Build a warm runner of a drafter network."""
    runner = OpenVinoRunner(trained, tensors, _settings(threads, "fp32", quantised), **sizes)
    runner.warm_up()
    return runner


def _settings(threads: int, kv_precision: str, quantised: bool) -> dict[str, Any]:
    return {
        "PERFORMANCE_HINT": "LATENCY",
        "NUM_STREAMS": "1",
        "INFERENCE_NUM_THREADS": str(threads),
        "INFERENCE_PRECISION_HINT": "f32",
        "DYNAMIC_QUANTIZATION_GROUP_SIZE": str(GROUP if quantised else 0),
        **_KV_SETTINGS[kv_precision],
    }
