"""The largest logits of several rows in one native call (`best.hpp`)."""

from __future__ import annotations

from array import array
from collections.abc import Sequence as List

import numpy as np

from paceline.native.library import address, calls, library
from paceline.types import IntArray, LogitArray


def best(logits: LogitArray, k: int) -> tuple[IntArray, LogitArray] | None:
    """Ids and values of each row's `k` largest entries, largest first; of equal ones the first.

    Args:
        logits: float32 `[n, vocabulary]`.
        k: how many, from 1 to the vocabulary.

    Returns:
        int64 `[n, k]` and float32 `[n, k]`; None where there is no library, or a row has too few
        numbers, or rows do not lie one after the other.
    """
    loaded = library()
    if loaded is None or logits.dtype != np.float32 or not logits.flags.c_contiguous:
        return None
    rows, width = logits.shape
    ids, values = np.empty((rows, k), np.int64), np.empty((rows, k), np.float32)
    addresses = ids.ctypes.data, values.ctypes.data
    done: int = loaded.paceline_best(logits.ctypes.data, rows, width, k, *addresses)
    return (ids, values) if done == rows else None


def rank_into(logits: LogitArray, tokens: List[int], table: array[int], width: int) -> bool:
    """Write into a table what rows rank highest; of a token that stands twice, the last row.

    Args:
        logits: float32 `[n, vocabulary]`.
        tokens: the tokens that the first rows belong to.
        table: int32 `[vocabulary * width]`; a narrower vocabulary leaves the last places of a
            token as they are.
        width: places per token.

    Returns:
        Whether it was done: not without a library, nor where rows do not lie one after the other.
    """
    if library() is None or logits.dtype != np.float32 or not logits.flags.c_contiguous:
        return False
    size, named = logits.shape[1], array("i", tokens)
    calls("rank_").into(
        *(address(logits), len(tokens), size, min(size, width), width),
        *(named.buffer_info()[0], table.buffer_info()[0]),
    )
    return True
