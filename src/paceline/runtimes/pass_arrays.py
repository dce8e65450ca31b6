"""What a pass is as arrays: its rows' tokens, their places, and what each of them sees."""

from __future__ import annotations

import numpy as np

from paceline import tree
from paceline.target import Pass
from paceline.types import BoolArray, IntArray


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
