"""Rows of packed matrices, as the native kernels read them."""

from __future__ import annotations

import ctypes

import numpy as np
import numpy.typing as npt

from paceline.core.types import LogitArray
from paceline.native.library import CMatrix, address, library


def read_rows(matrix: CMatrix, rows: npt.NDArray[np.int64]) -> LogitArray:
    """Return rows of a packed matrix as float32 `[rows, inputs]`."""
    loaded = library()
    assert loaded is not None
    rows = np.ascontiguousarray(rows, dtype=np.int64)
    out = np.empty((len(rows), matrix.inputs), dtype=np.float32)
    loaded.paceline_read_rows(ctypes.byref(matrix), address(rows), len(rows), address(out))
    return out
