"""Weights packed for the native kernels, at fixed addresses."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

from paceline.core.types import LogitArray, ProbArray
from paceline.native.library import Matrix

# Rows of a matrix that are multiplied together.
LANES = 16

# Activations per quantization scale.
GROUP = 64

# Bytes of a cache line.
_LINE = 64

# Bytes reserved at once, so that matrices in reading order share huge pages.
_AREA = 1 << 26

Tensors = Mapping[str, npt.NDArray[Any]]
"""`NAME.weight`: float32, int8 `[rows, columns]` with `NAME.scale`, or int4 with `NAME.steps`
(`quantize_int4`); `NAME.bias`.
"""


class Packed:
    """Packed matrices and other weights. Must outlive the programs that read them."""

    def __init__(self, *, often: bool = False) -> None:
        """Start empty. `often`: matrices are read several times in a row, as by draft steps."""
        self._often = often
        self._area = np.empty(0, dtype=np.uint8)
        self._kept: list[npt.NDArray[Any]] = []
        self._matrices: dict[tuple[str, bool], Matrix] = {}

    def keep(self, array: npt.NDArray[Any] | None) -> int | None:
        """Retain a contiguous array and return its address; None stays None."""
        if array is None:
            return None
        kept = np.ascontiguousarray(array)
        self._kept.append(kept)
        return int(kept.ctypes.data)

    def matrix(self, tensors: Tensors, name: str, *, gated: bool = False) -> Matrix:
        """Return a matrix in matmul layout, packed on first use.

        `gated`: its upper half holds the gates of the lower half.
        """
        if (name, gated) not in self._matrices:
            self._matrices[name, gated] = self._pack(tensors, name, gated)
        return self._matrices[name, gated]

    def _pack(self, tensors: Tensors, name: str, gated: bool) -> Matrix:
        weight = tensors[f"{name}.weight"]
        outputs, inputs = weight.shape
        bias = tensors.get(f"{name}.bias")
        more = None if bias is None else self._place(bias)
        if weight.dtype == np.float32:
            lines = weight.reshape(outputs // LANES, LANES, inputs).transpose(0, 2, 1)
            return Matrix(outputs, inputs, None, None, self._place(lines), more, False, gated)
        shape = outputs // LANES, LANES, inputs // GROUP, GROUP // 4, 4
        blocks = weight.reshape(shape).transpose(0, 2, 3, 1, 4)
        steps = tensors.get(f"{name}.steps")
        if steps is not None:
            low, high = np.split((blocks + 8).view(np.uint8), 2, axis=2)
            lines = steps.reshape(shape[:3]).transpose(0, 2, 1)
            how = self._often, gated, self._place(lines)
            return Matrix(outputs, inputs, self._place(low | high << 4), None, None, more, *how)
        raised = blocks.view(np.uint8) ^ 128  # adds 128
        parts = _paired(raised, gated), tensors[f"{name}.scale"]
        return Matrix(outputs, inputs, *map(self._place, parts), None, more, self._often, gated)

    def _place(self, array: npt.NDArray[Any]) -> int:
        size = -(-array.nbytes // _LINE) * _LINE
        if len(self._area) < size:
            room = np.empty(max(size, _AREA) + _LINE, dtype=np.uint8)
            self._area = room[-room.ctypes.data % _LINE :]
            self._kept.append(room)
        place, self._area = self._area[: array.nbytes], self._area[size:]
        place.view(array.dtype).reshape(array.shape)[...] = array
        return int(place.ctypes.data)


def _paired(blocks: npt.NDArray[Any], gated: bool) -> npt.NDArray[Any]:
    # `[pairs, ..., 2, 16, 4]` of `[blocks, ..., 16, 4]`: a matmul computes pairs together.
    if gated:
        return np.stack(np.split(blocks, 2), axis=-3)
    if len(blocks) % 2:
        blocks = np.concatenate([blocks, blocks[-1:]])
    return np.stack([blocks[::2], blocks[1::2]], axis=-3)


def quantize_int4(matrix: LogitArray) -> dict[str, npt.NDArray[Any]]:
    """Quantize to int4 in groups of 64 columns; the largest number of a group becomes -8.

    Args:
        matrix: float32 `[rows, columns]`, a multiple of 64 columns.

    Returns:
        `weight` int8 `[rows, columns]` from -8 to 7, and `steps` float16 `[rows, columns / 64]`.
    """
    groups = matrix.reshape(len(matrix), -1, GROUP)
    farthest = np.abs(groups).argmax(axis=2, keepdims=True)
    steps = (np.take_along_axis(groups, farthest, 2) / -8).astype(np.float16)
    steps[steps == 0] = 1
    codes = np.clip(np.rint(groups / steps.astype(np.float32)), -8, 7).astype(np.int8)
    return {"weight": codes.reshape(matrix.shape), "steps": steps[:, :, 0]}


def fits(weight: npt.NDArray[Any]) -> bool:
    """Return whether matmuls support a matrix: int8 `[rows, columns]`, or float32."""
    rows, columns = weight.shape
    return rows % LANES == 0 and (weight.dtype == np.float32 or columns % GROUP == 0)


def rotary_table(frequencies: ProbArray, positions: int) -> LogitArray:
    """Return float32 `[positions, head_dim]`: cosines of the rotary angles, then sines."""
    angles = np.arange(positions)[:, None] * frequencies[None]
    table: LogitArray = np.concatenate([np.cos(angles), np.sin(angles)], axis=1).astype(np.float32)
    return table
