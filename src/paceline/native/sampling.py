"""Native Gumbel race and top-k over logits."""

from __future__ import annotations

import ctypes
from array import array
from collections.abc import Sequence

import numpy as np

from paceline.core.types import IntArray, LogitArray, ProbArray, SamplingParams
from paceline.native.library import address, calls, library

# `from_buffer` gives an address in a third of the time of numpy's own ways.
_Memory = ctypes.c_char * 1


class CChoice(ctypes.Structure):
    _fields_ = (
        *((name, ctypes.c_double) for name in ("temperature", "top_p", "log_min_p")),
        ("top_k", ctypes.c_int64),
    )


class Race:
    """Gumbel-max sampling for one request."""

    def __init__(self, params: SamplingParams) -> None:
        """Bind temperature (not 0) and truncation."""
        lowest = float(np.log(params.min_p)) if params.min_p > 0 else -np.inf
        self._choice = CChoice(params.temperature, params.top_p, lowest, params.top_k)
        self._at = ctypes.addressof(self._choice)
        loaded = library()
        self._find = (
            {"f": loaded.paceline_winner, "d": loaded.paceline_winner_wide} if loaded else {}
        )

    def sample(self, logits: LogitArray | ProbArray, key: bytes) -> int | None:
        """Return the token that wins under a position's Gumbel noise.

        Args:
            logits: float32 or float64 `[vocabulary]`, after penalties.
            key: the noise's 16 bytes.

        Returns:
            The token; None if numpy must decide: no library, rounding might matter, or logits are
            not finite or not contiguous.
        """
        find = self._find.get(logits.dtype.char)
        if find is None:
            return None
        try:
            row = _Memory.from_buffer(logits.data)
        except (TypeError, ValueError):
            return None
        token: int = find(row, len(logits), self._at, key)
        return None if token < 0 else token


def best(logits: LogitArray, k: int) -> tuple[IntArray, LogitArray] | None:
    """Return ids and values of each row's top k, largest first, of equal ones the first.

    Args:
        logits: float32 `[n, vocabulary]`.
        k: from 1 to the vocabulary.

    Returns:
        int64 `[n, k]` and float32 `[n, k]`; None without a library, for rows with too few finite
        numbers, or rows that are not contiguous.
    """
    loaded = library()
    if loaded is None or logits.dtype != np.float32 or not logits.flags.c_contiguous:
        return None
    rows, width = logits.shape
    ids, values = np.empty((rows, k), np.int64), np.empty((rows, k), np.float32)
    addresses = ids.ctypes.data, values.ctypes.data
    done: int = loaded.paceline_best(logits.ctypes.data, rows, width, k, *addresses)
    return (ids, values) if done == rows else None


def rank_into(logits: LogitArray, tokens: Sequence[int], table: array[int], width: int) -> bool:
    """Write the top tokens of each row into a table; of a repeated token the last row counts.

    Args:
        logits: float32 `[n, vocabulary]`.
        tokens: token of each of the first rows.
        table: int32 `[vocabulary * width]`; a narrower vocabulary leaves the last entries.
        width: entries per token.

    Returns:
        False if nothing was done: no library, or rows that are not contiguous.
    """
    if library() is None or logits.dtype != np.float32 or not logits.flags.c_contiguous:
        return False
    size, named = logits.shape[1], array("i", tokens)
    calls("rank_").into(
        address(logits), len(tokens), size, min(size, width), width, address(named), address(table)
    )
    return True
