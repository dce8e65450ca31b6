"""Attention by the plugin's own paged operation, bit-exact by how rows are laid out.

Two facts, both tested, make a token's logits the same numbers however its pass was composed:

* Attention over one query row takes another kernel than over several. So no subsequence ever
  enters attention with a single row: a plain step sends its row twice and keeps one result.
* Attention groups sums by the distance between keys. So a branch must see its keys without gaps:
  in layout "exact" every root-to-leaf path is a subsequence of its own in attention.

Layout "masked" packs a draft into one subsequence under a mask: cheaper, but approximate.
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
from paceline.runtimes.openvino_batch import Batch, Shape
from paceline.runtimes.openvino_graph import build
from paceline.runtimes.openvino_layers import Layers
from paceline.runtimes.openvino_nodes import (
    Inputs,
    Paging,
    Rotation,
    Tensors,
    gather,
    ints,
    paged_attention,
    rms_norm,
    split,
)
from paceline.runtimes.openvino_plugin_batch import FIXED_SHAPES, PluginBatch
from paceline.runtimes.openvino_settings import KvFormat
from paceline.runtimes.paged_cache import PagedCache
from paceline.types import Layout, LogitArray


class PluginAttention(Attention):
    """The plugin's operation over blocks of rows."""

    name = "plugin"
    fixed = FIXED_SHAPES

    def __init__(self, kv: KvFormat, layout: Layout) -> None:
        """Say how keys and values are kept, and how trees are laid out."""
        self._kv = kv
        self._layout = layout

    def pool(self, config: ModelConfig, blocks: int, keep: int) -> BlockPool:
        """Memory as the plugin wants it."""
        width = config.head_dim + self._kv.extra
        return BlockPool(
            config.layers, config.kv_heads, width, blocks, keep=keep, dtype=self._kv.dtype
        )

    def graphs(self, config: ModelConfig, tensors: Tensors, layers: Layers) -> Graphs:
        """With gathers, and without for chains."""
        return _Graphs(config, tensors, layers)

    def bind(self, request: ov.InferRequest, pool: BlockPool) -> None:
        """Set each layer's keys and values as inputs."""
        for index, memory in enumerate(pool.memory):
            name = f"{('key', 'value')[index % 2]}_cache.{index // 2}"
            request.set_tensor(name, ov.Tensor(memory, shared_memory=True))

    def batch(self) -> Batch:
        """An empty one in this layout."""
        return PluginBatch(self._layout)

    def keep(self, cache: PagedCache, pending: int, path: Sequence[int]) -> None:
        """Adopt the path's blocks, or move its rows (masked)."""
        if self._layout == "exact":
            cache.adopt(pending, path)
            return
        start = cache.length + pending
        cache.move([start + node for node in path], start)
        cache.length = start + len(path)


class _Graphs(Graphs):
    def __init__(self, config: ModelConfig, tensors: Tensors, layers: Layers) -> None:
        def graph(direct: bool) -> ov.Model:
            return build(
                config, tensors, layers, lambda inputs: _Attend(config, tensors, inputs, direct)
            )

        self._general, self._direct = graph(False), graph(True)

    def of(self, shape: Shape | None) -> ov.Model:
        """The graph for exactly so many dense and attention rows, or for any."""
        if shape is None:
            return self._general
        dense = dict.fromkeys(("input_ids", "positions", "dense_rows"), shape.dense)
        graph = self._direct if shape.dense == shape.attention else self._general
        return fix(graph, {**dense, "attention_rows": shape.attention})


class _Attend:
    """Adds the nodes of a layer's attention.

    Inputs beside the KV caches (int32 unless noted): `positions [dense]`, `attention_rows
    [attention]` (the dense row that each attention row repeats), `dense_rows [dense]` (an attention
    row that computes each dense row), `past_lens [s]`, `subsequence_begins [s + 1]`,
    `block_indices`, `block_indices_begins [s + 1]`, `max_context_len []`, `qq_bias` uint8
    (flattened 0/1 mask per subsequence, or empty) and `qq_bias_begins [s + 1]`. If `direct`,
    attention rows are the dense rows: nothing is gathered.
    """

    def __init__(self, config: ModelConfig, tensors: Tensors, inputs: Inputs, direct: bool) -> None:
        self.direct = direct
        self.config = config
        self.tensors = tensors
        self.inputs = add = inputs
        self.paging = Paging(
            add.add("past_lens", np.int32, [-1]),
            add.add("subsequence_begins", np.int32, [-1]),
            add.add("block_indices", np.int32, [-1]),
            add.add("block_indices_begins", np.int32, [-1]),
            add.add("max_context_len", np.int32, []),
            add.add("qq_bias", np.uint8, [-1]),
            add.add("qq_bias_begins", np.int32, [-1]),
        )
        self.attention_rows = add.add("attention_rows", np.int32, [-1])
        self.dense_rows = add.add("dense_rows", np.int32, [-1])
        positions = self.spread(add.add("positions", np.int32, [-1]))
        self.rotate = Rotation(inverse_frequencies(config), config.max_context, positions)

    def spread(self, rows: Any) -> Any:
        """Attention rows of dense rows."""
        return rows if self.direct else gather(rows, self.attention_rows)

    def collect(self, rows: Any) -> Any:
        """Dense rows of attention rows."""
        return rows if self.direct else gather(rows, self.dense_rows)

    def heads(self, x: Any, count: int, norm: LogitArray | None) -> Any:
        """Split into heads, norm them if the family does, rotate, and flatten again."""
        x = op.reshape(x, ints(-1, count, 1, self.config.head_dim), False)
        if norm is not None:
            x = rms_norm(x, norm.reshape(1, 1, 1, -1), self.config.norm_eps)
        return op.reshape(self.rotate(x), ints(-1, count * self.config.head_dim), False)

    def __call__(self, qkv: Any, layer: int) -> Any:
        """See `openvino_graph.Attend`."""
        c = self.config
        name = f"layers.{layer}"
        widths = (c.heads * c.head_dim, c.kv_heads * c.head_dim, c.kv_heads * c.head_dim)
        queries, keys, values = split(self.spread(qkv), widths)
        query = self.heads(queries, c.heads, self.tensors.get(f"{name}.q_norm"))
        key = self.heads(keys, c.kv_heads, self.tensors.get(f"{name}.k_norm"))
        value = op.reshape(values, ints(-1, widths[2]), False)
        shape = [-1, c.kv_heads, BLOCK, c.head_dim]
        caches = [
            self.inputs.add(f"{kind}_cache.{layer}", np.float32, shape) for kind in ("key", "value")
        ]
        attended = paged_attention(
            [query, key, value, *caches], self.paging, c.heads, c.kv_heads, c.head_dim
        )
        return op.reshape(self.collect(attended), ints(-1, 1, widths[0]), False)
