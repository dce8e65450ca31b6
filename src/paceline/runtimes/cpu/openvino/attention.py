"""Target forwards on OpenVINO's paged attention, bit-exact by the layout of rows.

A token's logits do not depend on batch composition: no subsequence has a single query row (other
kernel), and every root-to-leaf path is a subsequence without gaps (sums group by key distance).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import openvino as ov
from openvino import opset15 as op

from paceline.core import tree as trees
from paceline.core.types import Layout, LogitArray, TokenTree
from paceline.models.config import ModelConfig, inverse_frequencies
from paceline.runtimes.cpu.backend import Batch, Input, Steps
from paceline.runtimes.cpu.kv_formats import KvFormat
from paceline.runtimes.cpu.openvino.graph import (
    Inputs,
    Paging,
    Rotation,
    Tensors,
    build,
    core,
    gather,
    ints,
    paged_attention,
    rms_norm,
    split,
)
from paceline.runtimes.cpu.openvino.requests import Instance, Requests, Shape, count
from paceline.runtimes.cpu.profile import Counted
from paceline.runtimes.kv_cache import BLOCK, BlockPool, PagedCache

# Shapes an instance may be fixed to. Equal numbers: attention rows are the dense rows.
FIXED_SHAPES = (
    Shape(1, 2),  # a plain step: attention never sees a single row, see above
    *(Shape(4, 4), Shape(8, 8), Shape(12, 12), Shape(16, 16)),  # chains: attention needs no gather
    *(Shape(4, 8), Shape(8, 16), Shape(12, 24), Shape(16, 32)),  # trees, and batches of plain steps
)

# Dense rows are padded to the next of these; larger forwards are not padded.
ROW_BUCKETS = (1, 2, 3, 4, 5, 6, 8, 10, 12, 16, 24, 32, 48, 64)


def bucket(rows: int) -> int:
    return next((size for size in ROW_BUCKETS if size >= rows), rows)


class PluginBatch(Batch):
    """Layout of a forward: dense rows, attention rows and block tables.

    Linear layers run over dense rows, each token once. Attention runs over attention rows, which
    repeat a token for every root-to-leaf path that holds it; two gathers per layer convert.
    """

    def __init__(self, layout: Layout) -> None:
        """Start empty.

        Args:
            layout: "exact": every root-to-leaf path is a subsequence; "masked": a draft is one
                packed subsequence under a tree mask, cheaper but approximate.
        """
        super().__init__()
        self._layout = layout
        self.positions: list[int] = []
        self.attention_rows: list[int] = []
        self.dense_rows: list[int] = []
        self.past: list[int] = []
        self.begins: list[int] = [0]
        self.blocks: list[int] = []
        self.block_begins: list[int] = [0]
        self.longest = 0
        self.bias: list[np.ndarray] = []
        self.bias_begins: list[int] = [0]

    def add(self, cache: PagedCache, tokens: Sequence[int], draft: TokenTree) -> int:
        cache.discard()
        past, count = cache.length, len(tokens)
        root = past + count - 1
        depths = trees.depths(draft).tolist()
        positions = [*range(past, past + count), *(root + depth for depth in depths)]
        first = self.rows([*tokens, *draft.tokens.tolist()], positions)
        pending = list(range(first, first + count))
        nodes = first + count
        if self._layout == "masked":
            total = count + len(draft)
            cache.reserve(max(total, 2))
            bias = None if trees.is_chain(draft) else tree_bias(draft, count)
            self.subsequence(list(range(first, first + total)), past, cache.blocks, bias)
            return first
        paths = trees.leaf_paths(draft) or [()]
        cache.reserve(max(count + len(paths[0]), 2))
        cache.branches.append((paths[0], None))
        self.subsequence(pending + [nodes + n for n in paths[0]], past, cache.blocks)
        for path in paths[1:]:
            blocks = cache.branch(path, count + len(path))
            self.subsequence(pending + [nodes + n for n in path], past, blocks)
        return first

    def rows(self, ids: Sequence[int], positions: Sequence[int]) -> int:
        """Add dense rows and return the index of the first."""
        first = len(self.ids)
        self.ids += ids
        self.positions += positions
        self.dense_rows += [-1] * len(ids)
        return first

    def subsequence(
        self, rows: list[int], past: int, blocks: list[int], bias: np.ndarray | None = None
    ) -> None:
        """Add attention of dense `rows`, in order of position, over `past` cached tokens."""
        if len(rows) == 1:
            rows = rows * 2  # never a single row, see the module docstring
        for row in rows:
            if self.dense_rows[row] < 0:
                self.dense_rows[row] = len(self.attention_rows)
            self.attention_rows.append(row)
        self.past.append(past)
        self.begins.append(len(self.attention_rows))
        total = past + len(rows)
        self.blocks += blocks[: -(-total // BLOCK)]
        self.block_begins.append(len(self.blocks))
        self.longest = max(self.longest, total)
        if bias is not None:
            self.bias.append(bias.ravel())
        self.bias_begins.append(self.bias_begins[-1] + (0 if bias is None else bias.size))

    def pad(self, scratch: int, rows: int) -> None:
        """Pad to the bucket of `rows` rows at least.

        Idle attention rows form a subsequence of their own in block `scratch`.
        """
        dense, attention = self._padded(max(len(self.ids), rows))
        first, idle = len(self.ids), dense - len(self.ids)
        self.ids += [0] * idle
        self.positions += [0] * idle
        direct = dense == attention
        self.dense_rows += range(first, dense) if direct else [0] * idle
        idle = attention - len(self.attention_rows)
        if idle:
            self.attention_rows += range(first, dense) if direct else [0] * idle
            self.past.append(0)
            self.begins.append(len(self.attention_rows))
            self.blocks += [scratch] * -(-idle // BLOCK)
            self.block_begins.append(len(self.blocks))
            self.bias_begins.append(self.bias_begins[-1])

    def _padded(self, dense: int) -> Shape:
        if self.attention_rows == list(range(len(self.ids))):
            return Shape(bucket(dense), bucket(dense))
        attention = len(self.attention_rows)
        for shape in FIXED_SHAPES:
            if shape.dense < shape.attention >= attention and shape.dense >= dense:
                return shape
        return Shape(bucket(dense), bucket(attention))

    def shape(self) -> Shape:
        return Shape(len(self.ids), len(self.attention_rows))

    def inputs(self) -> dict[str, Input]:
        """Return the graph's inputs by name: int32, but `qq_bias` uint8."""
        return {
            **self.common(),
            "feature_rows": self.feature_rows or [0],  # the graph wants a row; it is not read
            "positions": self.positions,
            "attention_rows": self.attention_rows,
            "dense_rows": self.dense_rows,
            "past_lens": self.past,
            "subsequence_begins": self.begins,
            "block_indices": self.blocks,
            "block_indices_begins": self.block_begins,
            "max_context_len": self.longest,
            "qq_bias_begins": self.bias_begins,
            "qq_bias": np.concatenate(self.bias) if self.bias else np.zeros(0, np.uint8),
        }


def tree_bias(draft: TokenTree, pending: int) -> np.ndarray:
    """Return the tree attention mask of pending tokens and nodes, uint8 `[rows, rows]`."""
    total = pending + len(draft)
    mask = np.tril(np.ones((total, total), dtype=np.uint8))
    mask[pending:, pending:] = trees.ancestor_mask(draft)
    return mask


class PluginSteps(Steps):
    """Backend on the OpenVINO plugin: graphs compiled for some shapes of forward."""

    name = "plugin"
    row_buckets = ROW_BUCKETS
    fixed = FIXED_SHAPES

    def __init__(
        self,
        config: ModelConfig,
        tensors: Tensors,
        kv: KvFormat,
        settings: Mapping[str, str],
        layout: Layout,
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
        self._settings = settings
        self._layout = layout
        width = config.head_dim + kv.extra
        self.pool = BlockPool(
            config.layers, config.kv_heads, width, blocks, keep=keep, dtype=kv.dtype
        )

    def start(self, extra: LogitArray) -> None:
        tensors = {**self._tensors, "embed.extra": extra} if len(extra) else self._tensors
        self._compile = _compiler(self._config, tensors, self._settings, self.pool)
        instance = sum(array.nbytes for array in tensors.values())
        self._requests = Requests(self._compile, self.fixed, instance)

    def complete(self) -> None:
        self._requests.complete()

    def batch(self) -> PluginBatch:
        return PluginBatch(self._layout)

    def pad(self, batch: Batch, rows: int) -> None:
        assert isinstance(batch, PluginBatch)
        batch.pad(self.pool.scratch, rows)

    def run(self, batch: Batch) -> Instance:
        assert isinstance(batch, PluginBatch)
        instance = self._requests.get(batch.shape())
        instance.run(batch.inputs())
        return instance

    def counted(self, batch: Batch, runs: int) -> Counted:
        assert isinstance(batch, PluginBatch)
        shape = batch.shape() if batch.shape() in self.fixed else None
        instance = Instance(self._compile(shape, counting=True))
        return count(lambda: instance.run(batch.inputs()), instance, runs)

    def keep(self, cache: PagedCache, pending: int, path: Sequence[int]) -> None:
        if self._layout == "exact":
            cache.adopt(pending, path)
            return
        start = cache.length + pending
        cache.move([start + node for node in path], start)
        cache.length = start + len(path)


# Not a method: a cycle through the steps would keep gigabytes alive until the next garbage
# collection.
def _compiler(
    config: ModelConfig, tensors: Tensors, settings: Mapping[str, str], pool: BlockPool
) -> Callable[..., ov.InferRequest]:
    def graph(direct: bool) -> ov.Model:
        return build(config, tensors, lambda inputs: _Attend(config, tensors, inputs, direct))

    general, chains = graph(False), graph(True)

    def of(shape: Shape | None) -> ov.Model:
        if shape is None:
            return general
        dense = dict.fromkeys(("input_ids", "positions", "dense_rows"), shape.dense)
        chosen = chains if shape.dense == shape.attention else general
        return _fix(chosen, {**dense, "attention_rows": shape.attention})

    def compile_request(shape: Shape | None, counting: bool = False) -> ov.InferRequest:
        chosen = {**settings, "PERF_COUNT": "YES"} if counting else settings
        request = core().compile_model(of(shape), "CPU", chosen).create_infer_request()
        for index, memory in enumerate(pool.memory):
            name = f"{('key', 'value')[index % 2]}_cache.{index // 2}"
            request.set_tensor(name, ov.Tensor(memory, shared_memory=True))
        return request

    return compile_request


def _fix(graph: ov.Model, sizes: dict[str, int]) -> ov.Model:
    fixed = graph.clone()
    shapes: dict[str, Any] = {
        port.get_any_name(): port.get_partial_shape() for port in fixed.inputs
    }
    shapes |= {name: ov.PartialShape([size]) for name, size in sizes.items()}
    fixed.reshape(shapes)
    return fixed


class _Attend:
    # Inputs beside the KV caches (int32 unless noted): `positions [dense]`, `attention_rows
    # [attention]` (dense row that each attention row repeats), `dense_rows [dense]` (an
    # attention row that computes each dense row), `past_lens [s]`, `subsequence_begins [s + 1]`,
    # `block_indices`, `block_indices_begins [s + 1]`, `max_context_len []`, `qq_bias` uint8
    # (flattened 0/1 mask per subsequence, or empty) and `qq_bias_begins [s + 1]`. If `direct`,
    # attention rows are the dense rows and nothing is gathered.

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
        return rows if self.direct else gather(rows, self.attention_rows)

    def collect(self, rows: Any) -> Any:
        return rows if self.direct else gather(rows, self.dense_rows)

    def heads(self, x: Any, count: int, norm: LogitArray | None) -> Any:
        x = op.reshape(x, ints(-1, count, 1, self.config.head_dim), False)
        if norm is not None:
            x = rms_norm(x, norm.reshape(1, 1, 1, -1), self.config.norm_eps)
        return op.reshape(self.rotate(x), ints(-1, count * self.config.head_dim), False)

    def __call__(self, qkv: Any, layer: int) -> Any:
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
