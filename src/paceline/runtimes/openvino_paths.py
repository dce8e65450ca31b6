"""Attention along paths by our own operation (`native/path_attention.hpp`).

A row's sums run over its keys in the order of its path, in chunks of fixed length, wherever the
keys are stored. So every token of a pass is computed and stored once, branches repeat nothing, a
plain step is a single row, and a token's logits are the same numbers however its pass was composed.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import openvino as ov
from openvino import opset15 as op

from paceline.models.config import ModelConfig, inverse_frequencies
from paceline.runtimes.block_pool import BLOCK, BlockPool
from paceline.runtimes.openvino_attention import Attention, Graphs, fix
from paceline.runtimes.openvino_batch import ROW_BUCKETS, Batch, Shape
from paceline.runtimes.openvino_graph import Attend, build
from paceline.runtimes.openvino_layers import Layers
from paceline.runtimes.openvino_native import Operations, operations
from paceline.runtimes.openvino_nodes import Inputs, Tensors
from paceline.runtimes.openvino_path_batch import FIELDS, PathBatch, room
from paceline.runtimes.openvino_settings import KvFormat
from paceline.runtimes.paged_cache import PagedCache

_LANES = 16
"""The operation takes heads whose width is a multiple of this."""

_QUERIES = 24
"""And at most so many query heads per head of keys."""

_LARGEST_FIXED = 16


class PathAttention(Attention):
    """Our own operation, every row along its path."""

    name = "paths"
    fixed = tuple(Shape(rows, rows) for rows in ROW_BUCKETS if rows <= _LARGEST_FIXED)

    def __init__(self, kv: KvFormat, nodes: Operations) -> None:
        """Say how keys and values are kept; `nodes` makes the operation."""
        self._kv = kv
        self._nodes = nodes

    def pool(self, config: ModelConfig, blocks: int, keep: int) -> BlockPool:
        """Memory in which a block's keys lie number by number, its values token by token."""
        return BlockPool(
            config.layers,
            config.kv_heads,
            config.head_dim,
            blocks,
            keep=keep,
            dtype=self._kv.dtype,
            keys_by_number=True,
        )

    def graphs(self, config: ModelConfig, tensors: Tensors, layers: Layers) -> Graphs:
        """One."""
        half = self._kv.dtype == np.float16

        def attend(inputs: Inputs) -> Attend:
            return _attend(config, tensors, inputs, self._nodes, half)

        return _Graphs(config, build(config, tensors, layers, attend))

    def bind(self, request: ov.InferRequest, pool: BlockPool) -> None:
        """Set the addresses of keys and values; the pool must outlive the request."""
        addresses = np.array([each.ctypes.data for each in pool.memory], dtype=np.uint64)
        request.set_tensor("memory", ov.Tensor(addresses.view(np.uint8)))

    def batch(self) -> Batch:
        """An empty one."""
        return PathBatch()

    def keep(self, cache: PagedCache, pending: int, path: Sequence[int]) -> None:
        """Close the gaps between the path's tokens."""
        start = cache.length + pending
        cache.move([cache.places[node] for node in path], start)
        cache.discard()
        cache.length = start + len(path)


def path_attention(config: ModelConfig, kv: KvFormat) -> PathAttention | None:
    """Our own attention, if model and cache are of a kind that it takes, and it compiles."""
    fits = config.head_dim % _LANES == 0 and config.heads <= _QUERIES * config.kv_heads
    if not fits or kv.dtype not in (np.float32, np.float16):
        return None
    nodes = operations()
    return None if nodes is None else PathAttention(kv, nodes)


class _Graphs(Graphs):
    def __init__(self, config: ModelConfig, graph: ov.Model) -> None:
        self._blocks = -(-config.max_context // BLOCK) + 1
        self._graph = graph

    def of(self, shape: Shape | None) -> ov.Model:
        """The graph for exactly so many rows, or for any."""
        if shape is None:
            return self._graph
        rows = shape.dense
        sizes = {"tables": room(rows * self._blocks), "singles": room(rows * rows)}
        return fix(self._graph, {"input_ids": rows, "rows": FIELDS * rows, **sizes})


def _attend(
    config: ModelConfig, tensors: Tensors, inputs: Inputs, nodes: Operations, half: bool
) -> Attend:
    """Adds the operation for each layer; its inputs are described in `native/extension.cpp`."""
    angles = np.arange(config.max_context)[:, None] * inverse_frequencies(config)[None]
    table = np.concatenate([np.cos(angles), np.sin(angles)], axis=1).astype(np.float32)
    shared = [
        op.constant(table),
        inputs.add("memory", np.uint8, [2 * config.layers * 8]),
        *(inputs.add(name, np.int32, [-1]) for name in ("rows", "tables", "singles")),
    ]

    def attend(qkv: Any, layer: int) -> Any:
        norms = [tensors.get(f"layers.{layer}.{kind}_norm") for kind in ("q", "k")]
        constants = [op.constant(norm.reshape(-1)) for norm in norms if norm is not None]
        sizes = {
            "layer": layer,
            "heads": config.heads,
            "kv_heads": config.kv_heads,
            "width": config.head_dim,
            "half": half,
            "eps": float(config.norm_eps),
        }
        return nodes.node("PathAttention", (qkv, *shared, *constants), sizes)

    return attend
