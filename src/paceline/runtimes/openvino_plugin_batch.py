"""Layout of a forward for the plugin's attention: subsequences of rows over block tables.

Rows are independent everywhere but in attention. So projections, norms and feed-forward layers run
over *dense rows* (each committed or drafted token once) and attention over *attention rows*: two
gathers per layer spread dense rows over every root-to-leaf path that holds them and collect one
result per dense row. A branch then sees its keys without gaps, in the same order and grouping as
plain decoding would.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from paceline import tree as trees
from paceline.runtimes.openvino_batch import Batch, Input, Shape, bucket
from paceline.runtimes.paged_cache import BLOCK, PagedCache
from paceline.types import Layout, TokenTree

FIXED_SHAPES = (
    Shape(1, 2),  # a plain step: attention never sees a single row, see `openvino_plugin`
    *(Shape(4, 4), Shape(8, 8), Shape(12, 12), Shape(16, 16)),  # chains: attention needs no gather
    *(Shape(4, 8), Shape(8, 16), Shape(12, 24), Shape(16, 32)),  # trees, and batches of plain steps
)
"""Shapes that a compiled instance may be fixed to. Where both numbers are equal, attention rows are
the dense rows; the others leave room for what branches repeat."""


class PluginBatch(Batch):
    """Dense rows, attention rows, block tables."""

    def __init__(self, layout: Layout) -> None:
        """Start empty.

        Args:
            layout: "exact": every root-to-leaf path is a subsequence; or "masked": a draft is one,
                packed, under a mask.
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
        """Add rows and their subsequences, see `Batch.add`."""
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
        """Attend from dense `rows`, in order of position, over `past` cached tokens."""
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
        """Fill up to a bucket, that of `rows` at least.

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
        """The shape that at least so many dense rows and all attention rows are padded to."""
        if self.attention_rows == list(range(len(self.ids))):
            return Shape(bucket(dense), bucket(dense))
        attention = len(self.attention_rows)
        for shape in FIXED_SHAPES:
            if shape.dense < shape.attention >= attention and shape.dense >= dense:
                return shape
        return Shape(bucket(dense), bucket(attention))

    def shape(self) -> Shape:
        """Dense and attention rows."""
        return Shape(len(self.ids), len(self.attention_rows))

    def inputs(self) -> dict[str, Input]:
        """The graph's inputs by name: int32, but for the bias, which is an array of uint8."""
        return {
            **self.common(),
            "feature_rows": self.feature_rows or [0],  # the graph wants a row; nobody reads it
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
    """The mask of a packed tree: uint8 `[rows, rows]` over pending tokens and nodes.

    1 where a row may attend.
    """
    total = pending + len(draft)
    mask = np.tril(np.ones((total, total), dtype=np.uint8))
    mask[pending:, pending:] = trees.ancestor_mask(draft)
    return mask
