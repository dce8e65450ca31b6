"""The race of a row's tokens in one native call (`race.hpp`)."""

from __future__ import annotations

import ctypes

import numpy as np

from paceline.native.library import library
from paceline.types import LogitArray, ProbArray, SamplingParams

_Memory = ctypes.c_char * 1
"""Seen so, an array lends its address at a third of what numpy's own ways to it take."""


class Choice(ctypes.Structure):
    """`Choice` of `race.hpp`."""

    _fields_ = (
        *((name, ctypes.c_double) for name in ("temperature", "top_p", "log_min_p")),
        ("top_k", ctypes.c_int64),
    )


class Race:
    """Finds winners for one request."""

    def __init__(self, params: SamplingParams) -> None:
        """Take temperature and truncation; the temperature is not 0."""
        lowest = float(np.log(params.min_p)) if params.min_p > 0 else -np.inf
        self._choice = Choice(params.temperature, params.top_p, lowest, params.top_k)
        self._at = ctypes.addressof(self._choice)
        loaded = library()
        self._find = (
            {"f": loaded.paceline_winner, "d": loaded.paceline_winner_wide} if loaded else {}
        )

    def winner(self, logits: LogitArray | ProbArray, key: bytes) -> int | None:
        """The token that wins under a position's noise.

        Args:
            logits: float32 or float64 `[vocabulary]`, after penalties.
            key: the noise's 16 bytes.

        Returns:
            The token; None where numpy has to find it: there is no library, rounding might decide,
            or the logits are broken, or cannot be lent as they are.
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
