"""What a pass is as arrays: its rows' tokens, their places, and what each of them sees."""

from __future__ import annotations

import numpy as np

from paceline.core import tree
from paceline.core.target import Pass
from paceline.core.types import BoolArray, IntArray, LogitArray
from paceline.errors import InvalidOption


def pass_rows(p: Pass) -> int:
    """Number of token rows of a pass."""
    return len(p.pending) + (0 if p.draft is None else len(p.draft))


def pass_tokens(p: Pass) -> IntArray:
    """int64 `[rows]`, the pending tokens, then the draft's."""
    pending = np.asarray(p.pending, dtype=np.int64)
    return pending if p.draft is None else np.concatenate([pending, p.draft.tokens])


def pass_positions(p: Pass, cached: int) -> IntArray:
    """int64 `[rows]`, the place in the sequence: nodes count from the root by depth."""
    pending = np.arange(cached, cached + len(p.pending), dtype=np.int64)
    if p.draft is None:
        return pending
    return np.concatenate([pending, tree.depths(p.draft) + pending[-1]])


def pass_mask(p: Pass, cached: int) -> BoolArray:
    """bool `[rows, cached + rows]`, True where a row sees a column.

    A pending token sees the cached tokens and the pending ones up to itself; a node sees all of
    those, its ancestors and itself.
    """
    rows, pending = pass_rows(p), len(p.pending)
    mask = np.tri(rows, cached + rows, cached, dtype=np.bool_)
    if p.draft is not None:
        mask[pending:, cached + pending :] = tree.ancestor_mask(p.draft)
    return mask


# Embeddings that belong to no token:


def no_rows(width: int) -> LogitArray:
    """A table without rows."""
    return np.zeros((0, width), dtype=np.float32)


def with_rows(table: LogitArray, rows: LogitArray) -> tuple[LogitArray, int]:
    """A table that holds some rows, and the place of the first of them.

    Rows that stand there already are not added again: then it is the same table.

    Args:
        table: float32 `[n, width]`.
        rows: float32 `[m, width]`, finite, at least one.

    Raises:
        InvalidOption: the rows are none, of another width, or not finite.
    """
    wide = rows.ndim == 2 and rows.shape[1:] == table.shape[1:] and len(rows) > 0
    if not wide or not np.isfinite(rows).all():
        raise InvalidOption(
            f"embeddings must be finite rows of width {table.shape[1]}, not of shape {rows.shape}: "
            "train them for this model"
        )
    for first in range(len(table) - len(rows) + 1):
        if np.array_equal(table[first : first + len(rows)], rows):
            return table, first
    return np.concatenate([table, rows.astype(np.float32)]), len(table)
