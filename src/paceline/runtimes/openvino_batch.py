"""Layout of one ragged forward: dense rows, attention rows, block tables, padding."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from paceline import tree as trees
from paceline.runtimes.paged_cache import BLOCK
from paceline.types import TokenTree

Input = int | list[int] | npt.NDArray[Any]
"""What an input of the graph is filled from."""


class Shape(NamedTuple):
    """Rows of one forward, padding included."""

    dense: int
    attention: int


ROW_BUCKETS = (1, 4, 8, 12, 16, 24, 32, 48, 64)
"""Dense rows per forward, padded up to the next of these; larger forwards are not padded."""

FIXED_SHAPES = (
    Shape(1, 2),  # a plain step: attention never sees a single row, see `openvino.py`
    *(Shape(4, 4), Shape(8, 8), Shape(12, 12), Shape(16, 16)),  # chains: attention needs no gather
    *(Shape(4, 8), Shape(8, 16), Shape(12, 24), Shape(16, 32)),  # trees, and batches of plain steps
)
"""Shapes that a compiled instance may be fixed to. Where both numbers are equal, attention rows are
the dense rows; the others leave room for what branches repeat."""


def _bucket(rows: int) -> int:
    """The padded number of rows."""
    return next((size for size in ROW_BUCKETS if size >= rows), rows)


class Batch:
    """Inputs of one forward, filled pass by pass."""

    def __init__(self) -> None:
        self.ids: list[int] = []
        self.positions: list[int] = []
        self.attention_rows: list[int] = []
        self.dense_rows: list[int] = []
        self.logit_rows: list[int] = []
        self.feature_rows: list[int] = []
        self.past: list[int] = []
        self.begins: list[int] = [0]
        self.blocks: list[int] = []
        self.block_begins: list[int] = [0]
        self.longest = 0
        self.bias: list[np.ndarray] = []
        self.bias_begins: list[int] = [0]

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
            return Shape(_bucket(dense), _bucket(dense))
        attention = len(self.attention_rows)
        for shape in FIXED_SHAPES:
            if shape.dense < shape.attention >= attention and shape.dense >= dense:
                return shape
        return Shape(_bucket(dense), _bucket(attention))

    def inputs(self) -> dict[str, Input]:
        """The graph's inputs by name: int32, but for the bias, which is an array of uint8."""
        return {
            "input_ids": self.ids,
            "positions": self.positions,
            "attention_rows": self.attention_rows,
            "dense_rows": self.dense_rows,
            "logit_rows": self.logit_rows,
            "feature_rows": self.feature_rows or [0],  # the graph wants a row; nobody reads it
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
