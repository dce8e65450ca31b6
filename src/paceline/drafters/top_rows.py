"""Top-k of several logits rows at once."""

from __future__ import annotations

import numpy as np

from paceline.native.ranking import best
from paceline.types import IntArray, LogitArray

# Entries that share a maximum. They lie far apart, so that maxima are taken of whole vectors.
_STRIDE = 32


def top_rows(logits: LogitArray, k: int) -> tuple[IntArray, LogitArray]:
    """Return int64 `[n, k]` ids and values of each row's `k` largest entries, largest first."""
    k = min(k, logits.shape[1])
    return best(logits, k) or _by_numpy(logits, k)


def _by_numpy(logits: LogitArray, k: int) -> tuple[IntArray, LogitArray]:
    count, width = logits.shape
    columns = width // _STRIDE
    if columns <= 2 * k:
        ids = np.broadcast_to(np.arange(width), logits.shape)
        values = logits
    else:
        # The k largest lie in the k columns with the largest maxima, or in the ragged end.
        blocks = logits[:, : columns * _STRIDE].reshape(count, _STRIDE, columns)
        widest = np.argpartition(blocks.max(axis=1), columns - k, axis=1)[:, columns - k :]
        values = np.take_along_axis(blocks, widest[:, None], 2).reshape(count, -1)
        ids = (widest[:, None] + columns * np.arange(_STRIDE)[:, None]).reshape(count, -1)
        if columns * _STRIDE < width:
            rest = np.arange(columns * _STRIDE, width)
            values = np.concatenate([values, logits[:, rest]], axis=1)
            ids = np.concatenate([ids, np.broadcast_to(rest, (count, len(rest)))], axis=1)
    if values.shape[1] > k:
        chosen = np.argpartition(values, values.shape[1] - k, axis=1)[:, values.shape[1] - k :]
        values, ids = np.take_along_axis(values, chosen, 1), np.take_along_axis(ids, chosen, 1)
    order = np.argsort(-values, axis=1, kind="stable")
    return np.take_along_axis(ids, order, 1), np.take_along_axis(values, order, 1)
