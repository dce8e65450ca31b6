"""Runs a drafter network on the CPU, for ragged batches of sequences."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
import openvino as ov

from paceline.networks.runner import Branch, Chain, Grown, Tail, chains
from paceline.networks.weights import Trained
from paceline.runtimes.network_weights import packed
from paceline.runtimes.openvino_batch import Input
from paceline.runtimes.openvino_branches import Asked, Branches, State, build_start
from paceline.runtimes.openvino_core import core
from paceline.runtimes.openvino_network import build
from paceline.runtimes.openvino_requests import Instance
from paceline.runtimes.paged_cache import BLOCK, BlockPool, PagedCache
from paceline.types import LogitArray

_CHUNK = 512
"""Context rows of a prompt taken in together."""

_STEPS = (2, 3)
"""Steps of graphs that are compiled beside the deepest. A step too many costs little, a graph for
every depth costs time at the start."""

_FEW = (1, 4, 8)
"""A lone sequence that has gained no more rows than the last of these runs on a graph of fixed
shape, which saves half of the time: the network is so small that working out shapes counts. Rows
are padded to the next of these; what they write is overwritten before anything sees it."""


@dataclass(eq=False, slots=True)
class NetworkCache:
    """Context rows of one sequence.

    Attributes:
        paged: keys and values of the network's layers.
        tail: the last tokens taken in.
        left: rows that have left the cache, since no row to come sees so far back.
        branches: what branches hold until the next draft.
    """

    paged: PagedCache
    tail: Tail
    left: int = 0
    branches: list[PagedCache] = field(default_factory=list)

    def prune(self) -> None:
        """Give the blocks of all branches back."""
        for table in self.branches:
            table.release()
        self.branches.clear()

    def slide(self, reach: int) -> None:
        """Drop the blocks that are out of sight for rows that see so far back; 0 is all."""
        while reach and self.paged.length + 1 - reach >= BLOCK:
            self.paged.pool.drop([self.paged.blocks.pop(0)])
            self.paged.length -= BLOCK
            self.left += BLOCK


class OpenVinoRunner:
    """A compiled network. Implements `networks.runner.Runner`."""

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
        """Pack the weights; graphs are compiled when their size is first wanted.

        Args:
            trained: network and parameters.
            target: the target's prepared weights: embedding, head and what is borrowed.
            settings: of the plugin.
            precision: of the network's matrices, "fp32"; any other stands for "int8".
            max_context: longest sequence.
            kv_tokens: capacity of the network's own cache over all sequences.

        Raises:
            InvalidOption: the target lacks layers that the network borrows.
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
        """Most tokens of a draft."""
        return self._network.depth

    def warm_up(self) -> None:
        """Compile the graphs that a lone sequence needs, a tenth of a second each."""
        most = self._network.steps
        for steps in {min(each, most) for each in (*_STEPS, most)}:
            for rows in _FEW:
                self._instance(steps, rows)

    def open(self) -> NetworkCache:
        """A new, empty cache."""
        return NetworkCache(PagedCache(self._pool), Tail(self._network))

    def release(self, cache: NetworkCache) -> None:
        """Give its blocks back."""
        cache.prune()
        cache.paged.release()

    def draft(self, grown: Sequence[Grown], depth: int) -> list[Chain]:
        """Take in what is new and draft."""
        instance = self._take_in(grown, -(-depth // self._network.width))
        if not depth:
            return []
        drafted, chances = instance.output("drafted"), instance.output("chances")
        return chains(self._network, drafted, chances, depth)

    def start(self, grown: Sequence[Grown]) -> list[Branch]:
        """Take in what is new; the graph stops at the first step's logits."""
        instance = self._take_in(grown, 0)
        states, logits = instance.output("state").copy(), instance.output("logits").copy()
        return [
            Branch(each.cache, None, (), State(state), row)
            for each, state, row in zip(grown, states, logits, strict=True)
        ]

    def advance(self, asked: Sequence[Asked]) -> list[Branch]:
        """One step of all branches at once."""
        if self._branches is None:
            parts = self._network, self._tensors, self._max_context
            self._branches = Branches(*parts, self._pool, self._compile)
        return self._branches.advance(asked)

    def hidden(self, branch: Branch) -> LogitArray:
        """As it left the graph."""
        state: State = branch.state
        return state.value

    def _take_in(self, grown: Sequence[Grown], steps: int) -> Instance:
        """Run the graph of so many steps; long prompts go before it in chunks."""
        rest = []
        for each in grown:
            *heads, last = each.parts(_CHUNK)
            for head in heads:
                self._run([head], 0)
            rest.append(last)
        return self._run(rest, steps)

    def _run(self, grown: Sequence[Grown], steps: int) -> Instance:
        counts = [len(each.tokens) for each in grown]
        fixed = next((size for size in _FEW if len(grown) == 1 and counts[0] <= size), 0)
        steps = self._at_least(steps)
        instance = self._instance(steps, fixed)
        idle = max(0, fixed - counts[0])
        last_rows = np.cumsum(counts) - 1
        picked = [*range(sum(counts)), *[sum(counts) - 1] * idle]
        windows = np.concatenate([each.cache.tail.windows(each.tokens) for each in grown])
        inputs: dict[str, Input] = {
            "tokens": windows[picked].astype(np.int32),
            "last_rows": last_rows.tolist(),
        }
        if self._network.reads_features:
            inputs["features"] = np.concatenate([each.features for each in grown])[picked]
        if self._network.layers:
            inputs |= self._paging(grown, idle, max(steps, 1) * self._network.width)
        instance.run(inputs)
        for each in grown:
            each.cache.paged.length += len(each.tokens)
            each.cache.tail.extend(each.tokens)
        return instance

    def _at_least(self, steps: int) -> int:
        """Steps of the graph to run: few sizes are compiled, since a step too many costs little."""
        sizes = (0, *_STEPS, self._network.steps)
        return min((size for size in sizes if steps <= size <= self._network.steps), default=steps)

    def _paging(self, grown: Sequence[Grown], idle: int, depth: int) -> dict[str, Input]:
        for each in grown:
            each.cache.prune()
            each.cache.slide(self._network.reach)
        past = [each.cache.paged.length for each in grown]
        after = [p + len(each.tokens) for p, each in zip(past, grown, strict=True)]
        ends = [end + idle for end in after]
        left = [each.cache.left for each in grown]
        blocks: list[int] = []
        block_begins = [0]
        for each in grown:
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
            "qq_bias_begins": [0] * (len(grown) + 1),
            "draft_past": after,
            "draft_positions": [a + gone for a, gone in zip(after, left, strict=True)],
            "draft_begins": list(range(len(grown) + 1)),
        }

    def _instance(self, steps: int, rows: int) -> Instance:
        """The graph for so many steps, 0 for that which starts branches, fixed to one sequence of
        `rows` new rows unless 0."""
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
        """An instance with the caches that the graph reads."""
        request = core().compile_model(graph, "CPU", self._settings).create_infer_request()
        names = {port.get_any_name() for port in graph.inputs}
        for layer in range(self._network.layers):
            for offset, kind in enumerate(("key", "value")):
                blocks = ov.Tensor(self._pool.memory[2 * layer + offset], shared_memory=True)
                if f"{kind}_cache.{layer}" in names:
                    request.set_tensor(f"{kind}_cache.{layer}", blocks)
        return Instance(request)


def _fixed(graph: ov.Model, rows: int) -> dict[str, ov.PartialShape]:
    """Input shapes for one sequence that has gained so many rows."""
    by_rows = ("features", "tokens", "positions")
    one = ("last_rows", "past_lens", "draft_past", "draft_positions")
    two = ("subsequence_begins", "block_indices_begins", "qq_bias_begins", "draft_begins")
    shapes = {}
    for port in graph.inputs:
        name, shape = port.get_any_name(), port.get_partial_shape()
        size = rows if name in by_rows else 1 if name in one else 2 if name in two else None
        shapes[name] = shape if size is None else ov.PartialShape([size, *list(shape)[1:]])
    return shapes
