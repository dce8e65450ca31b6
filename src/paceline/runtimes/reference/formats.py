"""Matrices in the block formats of GGUF files, as integers and scales."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from paceline.core.types import LogitArray
from paceline.native.packed import BLOCKS, GROUP, PLAIN

Bytes = npt.NDArray[np.uint8]


@dataclass(frozen=True, slots=True)
class Matrix:
    """Outputs by inputs.

    Attributes:
        numbers: float32 `[outputs, inputs]`; if there are scales, integers `[outputs, cells, 32]`.
        scales: float32 `[outputs, cells]`, of integers.
        minima: likewise, subtracted from every number.
    """

    numbers: npt.NDArray[Any]
    scales: LogitArray | None = None
    minima: LogitArray | None = None


def matrix(kind: str, rows: Bytes) -> Matrix:
    """Read rows of blocks of a type of GGUF files, uint8 `[outputs, bytes]`."""
    if kind == "BF16":  # the upper half of a float32
        return Matrix((rows.view("<u2").astype(np.uint32) << 16).view(np.float32))
    if kind in PLAIN:
        return Matrix(rows.view("<f4" if kind == "F32" else "<f2").astype(np.float32))
    blocks = rows.reshape(len(rows), -1, _SIZES[kind])
    read = _k_blocks if BLOCKS[kind] > GROUP else _blocks
    numbers, scales, minima = read(kind, blocks)
    cells = (len(rows), -1)
    return Matrix(
        numbers.reshape(*cells, GROUP),
        scales.reshape(cells),
        None if minima is None else minima.reshape(cells),
    )


# Bytes of a block.
_SIZES = {"Q4_0": 18, "Q4_1": 20, "Q5_0": 22, "Q5_1": 24, "Q8_0": 34}
_SIZES |= {"Q4_K": 144, "Q5_K": 176, "Q6_K": 210}


def _half(blocks: Bytes, at: int) -> LogitArray:
    return blocks[..., at : at + 2].copy().view("<f2")[..., 0].astype(np.float32)


def _blocks(kind: str, blocks: Bytes) -> tuple[Any, LogitArray, LogitArray | None]:
    scales = _half(blocks, 0)
    if kind == "Q8_0":
        return blocks[..., 2:].view(np.int8), scales, None
    both = blocks[..., -16:]
    numbers = np.concatenate([both & 15, both >> 4], axis=-1).astype(np.int8)
    if kind in ("Q5_0", "Q5_1"):
        fifth = np.unpackbits(blocks[..., -20:-16], axis=-1, bitorder="little")
        numbers |= (fifth << 4).astype(np.int8)
    if kind in ("Q4_1", "Q5_1"):
        return numbers, scales, -_half(blocks, 2)  # is added in the file
    return numbers - (8 if kind == "Q4_0" else 16), scales, None


def _k_blocks(kind: str, blocks: Bytes) -> tuple[Any, LogitArray, LogitArray | None]:
    shape, cells = blocks.shape[:2], np.arange(8)[:, None]
    if kind == "Q6_K":
        both = blocks[..., :128].reshape(*shape, 2, 2, GROUP)
        high = blocks[..., 128:192].reshape(*shape, 2, 1, GROUP) >> 2 * cells[:4].astype(np.uint8)
        low = np.stack([both & 15, both >> 4], axis=-3).reshape(*shape, 8, GROUP)
        codes = low | (high.reshape(*shape, 8, GROUP) & 3) << 4
        # Scales of 16 inputs are small integers: they go with the numbers.
        small = blocks[..., 192:208].view(np.int8).repeat(16, axis=-1).reshape(*shape, 8, GROUP)
        numbers = (codes.astype(np.int16) - 32) * small
        return numbers, np.repeat(_half(blocks, 208), 8, axis=-1), None
    both = blocks[..., -128:].reshape(*shape, 4, GROUP)
    codes = np.stack([both & 15, both >> 4], axis=-2).reshape(*shape, 8, GROUP)
    if kind == "Q5_K":
        codes |= (blocks[..., 16:48].reshape(*shape, 1, GROUP) >> cells.astype(np.uint8) & 1) << 4
    first, second, third = np.split(blocks[..., 4:16], 3, axis=-1)
    scales = np.concatenate([first & 63, third & 15 | first >> 6 << 4], axis=-1)
    minima = np.concatenate([second & 63, third >> 4 | second >> 6 << 4], axis=-1)
    return codes, _half(blocks, 0)[..., None] * scales, _half(blocks, 2)[..., None] * minima
