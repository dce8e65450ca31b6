"""Embeddings that belong to no token: their ids stand behind the vocabulary, in drafts alone."""

from __future__ import annotations

import numpy as np

from paceline.errors import InvalidOption
from paceline.types import LogitArray


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
