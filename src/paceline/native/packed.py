"""Matrices packed for the native kernels, and other weights at fixed addresses."""

from __future__ import annotations

import mmap
from collections.abc import Iterator
from typing import Any

import numpy as np
import numpy.typing as npt

from paceline.core.types import LogitArray, ProbArray
from paceline.native.blocks import TYPES, width_of
from paceline.native.library import CMatrix, address, library

# Outputs that are computed together.
LANES = 16


class Packed:
    """Packed matrices and other weights. Must outlive the programs that read them."""

    def __init__(self) -> None:
        self._kept: list[Any] = []
        self._tables: dict[tuple[tuple[float, ...], int, float], LogitArray] = {}

    def keep(self, array: npt.NDArray[Any] | None) -> int | None:
        """Retain a contiguous array and return its address; None stays None."""
        if array is None:
            return None
        kept = np.ascontiguousarray(array)
        self._kept.append(kept)
        return int(kept.ctypes.data)

    def rotary_table(
        self, frequencies: tuple[float, ...], positions: int, factor: float
    ) -> LogitArray:
        """Return the table of that name, made at its first use."""
        key = frequencies, positions, factor
        if key not in self._tables:
            self._tables[key] = rotary_table(np.array(frequencies), positions, factor)
        return self._tables[key]

    def rotary_tables(
        self, positions: int
    ) -> Iterator[tuple[tuple[float, ...], float, LogitArray]]:
        """Yield frequencies, factor and table of those of so many positions."""
        for (frequencies, count, factor), table in self._tables.items():
            if count == positions:
                yield frequencies, factor, table

    def matrix(
        self,
        kind: str,
        blocks: npt.NDArray[np.uint8],
        inputs: int,
        *,
        order: npt.NDArray[np.int64] | None = None,
        bias: LogitArray | None = None,
        threads: int = 1,
    ) -> CMatrix:
        """Pack a matrix.

        Args:
            kind: of `blocks.KINDS`.
            blocks: uint8 `[outputs, bytes]`, rows in the format of GGUF files.
            inputs: columns of a row, a multiple of `width_of(kind)`.
            order: row of each output; None for all in order.
            bias: float32 `[outputs]`.
            threads: to pack with.

        Raises:
            MemoryError: no memory for it.
            RuntimeError: there is no library.
            ValueError: the inputs are no whole blocks.
        """
        loaded = library()
        if loaded is None:
            raise RuntimeError("native operations are not compiled")
        if inputs % width_of(kind):
            raise ValueError(f"{inputs} inputs are no whole blocks of {width_of(kind)} ({kind})")
        if blocks.strides[-1] != 1:
            blocks = np.ascontiguousarray(blocks)
        outputs = len(blocks) if order is None else len(order)
        number = TYPES[kind].number
        size = loaded.paceline_packed_bytes(number, outputs, inputs)
        tiles = np.frombuffer(mmap.mmap(-1, size), dtype=np.uint8)  # from a page's begin on
        self._kept.append(tiles)
        at = None
        if order is not None:
            order = np.ascontiguousarray(order, dtype=np.int64)
            at = order.ctypes.data
        loaded.paceline_pack(
            number,
            blocks.ctypes.data,
            blocks.strides[0],
            at,
            outputs,
            inputs,
            threads,
            tiles.ctypes.data,
        )
        return CMatrix(outputs, inputs, number, 0, tiles.ctypes.data, self.keep(bias))


def rotary_table(frequencies: ProbArray, positions: int, factor: float = 1.0) -> LogitArray:
    """Return float32 `[positions, 2 * frequencies]`: cosines of the rotary angles, then sines."""
    loaded = library()
    assert loaded is not None
    frequencies = np.ascontiguousarray(frequencies, dtype=np.float64)
    table = np.empty((positions, 2 * len(frequencies)), dtype=np.float32)
    loaded.paceline_rotary_table(
        frequencies.ctypes.data, len(frequencies), positions, factor, address(table)
    )
    return table
