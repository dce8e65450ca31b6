"""Trees of drafter networks as OpenVINO graphs: one step of any number of branches in one run.

In the cache a row sees all rows before it, so every branch has a block table of its own until the
next draft: full blocks are shared with the branch above, the last is copied. A step then costs one
row per branch and token, whatever its depth.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import openvino as ov

from paceline.networks.base import Network
from paceline.networks.runner import Branch
from paceline.runtimes.openvino_batch import Input
from paceline.runtimes.openvino_network import OpenVinoOps, begun, model
from paceline.runtimes.openvino_nodes import Tensors
from paceline.runtimes.openvino_requests import Instance
from paceline.runtimes.paged_cache import BlockPool, PagedCache
from paceline.types import LogitArray

Asked = tuple[Branch, Sequence[int]]

_SIZES = (1, 2, 4, 8)
"""Branches of a step are padded to the next of these, and run on graphs of fixed shape: small
networks spend more on working out shapes than on rows that nobody wants."""


@dataclass(frozen=True, slots=True)
class State:
    """Of a branch.

    Attributes:
        value: float32 `[slots, ...]`, the network's.
        table: holds what its steps wrote; None before the first.
    """

    value: LogitArray
    table: PagedCache | None = None


class BranchOps(OpenVinoOps):
    """Draft rows with block tables of their own, one subsequence per branch."""

    def attend_draft(self, layer: int, queries: Any, keys: Any, values: Any) -> Any:
        """Attention of a branch's rows over the context and those before them."""
        slots = queries.get_output_partial_shape(0)[1].get_length()
        return self._attend(layer, (queries, keys, values), self._rotation, self._paging, slots)


def build_start(network: Network, tensors: Tensors, max_context: int) -> ov.Model:
    """The graph that takes in context rows, with inputs as `openvino_network.build`.

    Outputs, float32: `state`, and `logits` `[s, width, draft vocabulary]` of the first step.
    """
    ops, state = begun(network, tensors, max_context)
    outputs = {"logits": network.logits(ops, state, 0), "state": state}
    return model(outputs, ops.inputs.parameters, network.name)


class Branches:
    """Steps of branches.

    Inputs of the graph: `above` float32, the states that steps start from, `tokens` int32
    `[branches, width]`; where a step attends, paging as in `openvino_network.build`, with a
    subsequence per branch. Outputs, float32: `state` and `logits` `[branches, width, draft
    vocabulary]`.
    """

    def __init__(
        self,
        network: Network,
        tensors: Tensors,
        max_context: int,
        pool: BlockPool,
        compiled: Callable[[ov.Model], Instance],
    ) -> None:
        """Build nothing yet but what tells shapes.

        Args:
            network: what branches; its step has the same weights at every depth.
            tensors: packed parameters by name, "embed" and "head".
            max_context: greatest position.
            pool: the network's cache.
            compiled: compiles a graph and binds the caches.
        """
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
        """As `networks.runner.Runner.advance`; tables are noted in the caches' `branches`."""
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
        """A block table for one more step."""
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
        """By name of the input; idle branches write to a block that nobody reads."""
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
        """For so many branches, or for any number if 0."""
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
