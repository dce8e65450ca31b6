"""Weight compression for the CPU runtime: symmetric int8 per row, asymmetric int4 per group."""

from __future__ import annotations

from typing import Literal

import numpy as np

from paceline.errors import InvalidOption
from paceline.types import LogitArray

Precision = Literal["int8", "fp32", "int4"]
PRECISIONS: tuple[Precision, ...] = ("int8", "fp32", "int4")
INT4_GROUP = 32
"""Columns that share a scale and a zero point."""

Packed = dict[str, np.ndarray]
"""A compressed matrix: `weight` (float32, int8 or packed uint8), and for the compressed kinds
`scale` (float32) and, for int4, `zero` (float32, in steps)."""


def check_precision(precision: str) -> Precision:
    """Return `precision` if it is known.

    Raises:
        InvalidOption: it is not.
    """
    for known in PRECISIONS:
        if precision == known:
            return known
    raise InvalidOption(f"precision {precision!r} is unknown: use {', '.join(PRECISIONS)}")


def pack(matrix: LogitArray, precision: Precision) -> Packed:
    """Compress float32 `[rows, columns]`; columns must be a multiple of 32 for int4."""
    if precision == "fp32":
        return {"weight": np.ascontiguousarray(matrix)}
    if precision == "int8":
        scale = np.abs(matrix).max(axis=1, keepdims=True) / np.float32(127)
        scale[scale == 0] = 1
        return {"weight": np.rint(matrix / scale).astype(np.int8), "scale": scale}
    return _pack_int4(matrix)


def _pack_int4(matrix: LogitArray) -> Packed:
    rows, columns = matrix.shape
    if columns % INT4_GROUP:
        raise InvalidOption(
            f"precision 'int4' needs rows of a multiple of {INT4_GROUP} weights, not {columns}: "
            "use --precision int8"
        )
    groups = matrix.reshape(rows, columns // INT4_GROUP, INT4_GROUP)
    low = groups.min(axis=2, keepdims=True)
    scale = (groups.max(axis=2, keepdims=True) - low) / np.float32(15)
    scale[scale == 0] = 1
    codes = np.clip(np.rint((groups - low) / scale), 0, 15)
    # A fractional zero point: groups that were on a grid of 16 levels (Q4_1) stay as they are.
    return {"weight": _nibbles(codes), "scale": scale, "zero": -low / scale}


def _nibbles(codes: LogitArray) -> np.ndarray:
    """Two codes per byte, the first in the low half; odd lengths are padded."""
    flat = codes.astype(np.uint8).ravel()
    if len(flat) % 2:
        flat = np.append(flat, np.uint8(0))
    packed: np.ndarray = flat[0::2] | flat[1::2] << 4
    return packed


def unpack(packed: Packed, shape: tuple[int, int]) -> LogitArray:
    """The float32 matrix that a packed one stands for."""
    weight = packed["weight"]
    if weight.dtype == np.float32:
        return weight
    if weight.dtype == np.int8:
        restored: LogitArray = weight.astype(np.float32) * packed["scale"]
        return restored

    def spread(data: np.ndarray, count: int) -> np.ndarray:
        return np.stack([data & 15, data >> 4], axis=1).ravel()[:count].astype(np.float32)

    scale = packed["scale"]
    codes = spread(weight, shape[0] * shape[1]).reshape(*scale.shape[:2], INT4_GROUP)
    result: LogitArray = ((codes - packed["zero"]) * scale).reshape(shape)
    return result
