"""Arrays of a pass: token rows, positions and attention mask; table of extra embeddings."""

from __future__ import annotations

import numpy as np

from paceline.core import tree
from paceline.core.target import Block, Pass
from paceline.core.types import BoolArray, IntArray, LogitArray
from paceline.errors import InvalidOption


def pass_rows(p: Pass) -> int:
    return len(p.pending) + (0 if p.draft is None else len(p.draft))


def pass_tokens(p: Pass) -> IntArray:
    """Return int64 `[rows]`: the pending tokens, then the draft's."""
    pending = np.asarray(p.pending, dtype=np.int64)
    return pending if p.draft is None else np.concatenate([pending, p.draft.tokens])


def pass_positions(p: Pass, cached: int) -> IntArray:
    """Return int64 `[rows]`, positions in the sequence; a node's is the root's plus its depth."""
    pending = np.arange(cached, cached + len(p.pending), dtype=np.int64)
    if p.draft is None:
        return pending
    return np.concatenate([pending, tree.depths(p.draft) + pending[-1]])


def pass_mask(p: Pass, cached: int, window: int = 0) -> BoolArray:
    """Return the attention mask, bool `[rows, cached + rows]`.

    A pending token sees the cached tokens and the pending ones up to itself. A node sees all of
    those, its ancestors and itself. A window leaves the newest positions, 0 all.
    """
    rows, pending = pass_rows(p), len(p.pending)
    mask = np.tri(rows, cached + rows, cached, dtype=np.bool_)
    if p.draft is not None:
        mask[pending:, cached + pending :] = tree.ancestor_mask(p.draft)
    if window:
        own = pass_positions(p, cached)
        mask &= np.concatenate([np.arange(cached), own]) > own[:, None] - window
    return mask


def block_mask(block: Block, window: int = 0) -> BoolArray:
    """Return what the rows of a block see, bool `[rows, cached + rows]`.

    A window leaves the last so many of the keys that a row sees, 0 all.
    """
    past = block.cache.length
    cached = np.full(len(block.tokens), past) if block.cached is None else block.cached
    mask = np.concatenate([np.arange(past) < cached[:, None], block.sees], axis=1)
    if window:
        mask &= mask[:, ::-1].cumsum(axis=1)[:, ::-1] <= window
    return mask


def no_rows(width: int) -> LogitArray:
    return np.zeros((0, width), dtype=np.float32)


def with_rows(table: LogitArray, rows: LogitArray) -> tuple[LogitArray, int]:
    """Append embedding rows to a table; rows that it already holds are not added again.

    Args:
        table: float32 `[n, width]`.
        rows: float32 `[m, width]`, finite, at least one.

    Returns:
        The table, the same object if the rows were there, and the index of the first row.

    Raises:
        InvalidOption: no rows, another width, or values that are not finite.
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
