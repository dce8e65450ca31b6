"""Weights as native operations read them, at fixed addresses."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

from paceline.native.library import Matrix

_LANES, _GROUP = 16, 64
"""Rows of a matrix that are multiplied together; activations that share a scale."""

_LINE = 64
"""Bytes that the processor fetches together."""

_AREA = 1 << 26
"""Bytes that are reserved at once: matrices that are read one after the other lie so, on pages as
large as the system has."""

Tensors = Mapping[str, npt.NDArray[Any]]
"""`NAME.weight`, int8 `[rows, columns]` with `NAME.scale` or float32; `NAME.bias`."""


class Packed:
    """Matrices and other weights. Must outlive the programs that read them."""

    def __init__(self, *, often: bool = False) -> None:
        """Hold none.

        Args:
            often: whether matrices are read several times in a row, as by steps of a draft.
        """
        self._often = often
        self._area = np.empty(0, dtype=np.uint8)
        self._kept: list[npt.NDArray[Any]] = []
        self._matrices: dict[str, Matrix] = {}

    def keep(self, array: npt.NDArray[Any] | None) -> int | None:
        """The address of a contiguous array, which is kept; None stays None."""
        if array is None:
            return None
        kept = np.ascontiguousarray(array)
        self._kept.append(kept)
        return int(kept.ctypes.data)

    def matrix(self, tensors: Tensors, name: str) -> Matrix:
        """A matrix as products want it (`product.hpp`), packed when it is first asked for."""
        if name not in self._matrices:
            self._matrices[name] = self._pack(tensors, name)
        return self._matrices[name]

    def _pack(self, tensors: Tensors, name: str) -> Matrix:
        weight = tensors[f"{name}.weight"]
        outputs, inputs = weight.shape
        bias = tensors.get(f"{name}.bias")
        more = None if bias is None else self._place(bias)
        if weight.dtype == np.float32:
            lines = weight.reshape(outputs // _LANES, _LANES, inputs).transpose(0, 2, 1)
            return Matrix(outputs, inputs, None, None, self._place(lines), more)
        blocks = weight.reshape(outputs // _LANES, _LANES, inputs // _GROUP, _GROUP // 4, 4)
        raised = (blocks.view(np.uint8) ^ 128).transpose(0, 2, 3, 1, 4)  # adds 128
        parts = raised, tensors[f"{name}.scale"]
        return Matrix(outputs, inputs, *map(self._place, parts), None, more, self._often)

    def _place(self, array: npt.NDArray[Any]) -> int:
        """The address of a copy."""
        size = -(-array.nbytes // _LINE) * _LINE
        if len(self._area) < size:
            room = np.empty(max(size, _AREA) + _LINE, dtype=np.uint8)
            self._area = room[-room.ctypes.data % _LINE :]
            self._kept.append(room)
        place, self._area = self._area[: array.nbytes], self._area[size:]
        place.view(array.dtype).reshape(array.shape)[...] = array
        return int(place.ctypes.data)


def fits(weight: npt.NDArray[Any]) -> bool:
    """Whether products take a matrix: int8 `[rows, columns]`, or float32."""
    rows, columns = weight.shape
    return rows % _LANES == 0 and (weight.dtype == np.float32 or columns % _GROUP == 0)
