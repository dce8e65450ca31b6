"""Matrices in the block formats of GGUF files, as integers and scales."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from paceline.core.types import LogitArray
from paceline.native.blocks import GROUP, PLAIN, TYPES

Bytes = npt.NDArray[np.uint8]


@dataclass(frozen=True, slots=True)
class Matrix:
    """Outputs by inputs.

    Attributes:
        numbers: float32 `[outputs, inputs]`; if there are scales, integers `[outputs, cells, 32]`.
        scales: float32 `[outputs, cells]`, of integers.
        minima: likewise, subtracted from every number.
        lows: integers as `numbers`, how many minima are subtracted; None for one.
    """

    numbers: npt.NDArray[Any]
    scales: LogitArray | None = None
    minima: LogitArray | None = None
    lows: npt.NDArray[Any] | None = None


def matrix(kind: str, rows: Bytes) -> Matrix:
    """Read rows of blocks of a type of GGUF files, uint8 `[outputs, bytes]`."""
    if kind == "BF16":  # the upper half of a float32
        return Matrix((rows.view("<u2").astype(np.uint32) << 16).view(np.float32))
    if kind in PLAIN:
        return Matrix(rows.view("<f4" if kind == "F32" else "<f2").astype(np.float32))
    blocks = rows.reshape(len(rows), -1, TYPES[kind].size)
    made = _k_blocks(kind, blocks) if TYPES[kind].inputs > GROUP else _blocks(kind, blocks)
    cells = (len(rows), -1)

    def by_cell(scales: LogitArray | None) -> LogitArray | None:
        return None if scales is None else scales.reshape(cells)

    def by_input(numbers: npt.NDArray[Any] | None) -> npt.NDArray[Any] | None:
        return None if numbers is None else numbers.reshape(*cells, GROUP)

    numbers = made.numbers.reshape(*cells, GROUP)
    return Matrix(numbers, by_cell(made.scales), by_cell(made.minima), by_input(made.lows))


def _half(blocks: Bytes, at: int) -> LogitArray:
    return blocks[..., at : at + 2].copy().view("<f2")[..., 0].astype(np.float32)


# Numbers of four bits that are not linear, and twice those that are floats.
_NON_LINEAR = (-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113)
_FLOATS = (0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12)


def _nibbles(both: Bytes) -> npt.NDArray[np.int8]:
    return np.concatenate([both & 15, both >> 4], axis=-1).astype(np.int8)


def _blocks(kind: str, blocks: Bytes) -> Matrix:
    if kind == "MXFP4":
        numbers = np.array(_FLOATS, np.int8)[_nibbles(blocks[..., 1:])]
        return Matrix(numbers, np.ldexp(np.float32(1), blocks[..., 0].astype(np.int32) - 128))
    scales = _half(blocks, 0)
    if kind == "Q8_0":
        return Matrix(blocks[..., 2:].view(np.int8), scales)
    numbers = _nibbles(blocks[..., -16:])
    if kind == "IQ4_NL":
        return Matrix(np.array(_NON_LINEAR, np.int8)[numbers], scales)
    if kind in ("Q5_0", "Q5_1"):
        fifth = np.unpackbits(blocks[..., -20:-16], axis=-1, bitorder="little")
        numbers |= (fifth << 4).astype(np.int8)
    if kind in ("Q4_1", "Q5_1"):
        return Matrix(numbers, scales, -_half(blocks, 2))  # is added in the file
    return Matrix(numbers - (8 if kind == "Q4_0" else 16), scales)


def _k_blocks(kind: str, blocks: Bytes) -> Matrix:
    shape, cells = blocks.shape[:2], np.arange(8, dtype=np.uint8)[:, None]
    both: npt.NDArray[Any]
    codes: npt.NDArray[Any]
    small: npt.NDArray[Any]

    def by_sixteen(small: npt.NDArray[Any]) -> npt.NDArray[np.int16]:
        # Scales of 16 inputs are small integers: they go with the numbers.
        return small.astype(np.int16).repeat(16, axis=-1).reshape(*shape, 8, GROUP)

    def two_bits(codes: Bytes) -> npt.NDArray[Any]:
        four = codes.reshape(*shape, 2, 1, GROUP) >> 2 * cells[:4]
        return (four & 3).reshape(*shape, 8, GROUP)

    def of_eight(at: int) -> LogitArray:
        return np.repeat(_half(blocks, at), 8, axis=-1)

    if kind == "I8_K":
        codes = blocks[..., 20:].view(np.int8).reshape(*shape, 8, GROUP)
        scales = blocks[..., :4].copy().view("<f4").repeat(8, axis=-1)
        return Matrix(codes * by_sixteen(blocks[..., 4:20].view(np.int8)), scales)
    if kind == "Q6_K":
        both = blocks[..., :128].reshape(*shape, 2, 2, GROUP)
        low = np.stack([both & 15, both >> 4], axis=-3).reshape(*shape, 8, GROUP)
        codes = (low | two_bits(blocks[..., 128:192]) << 4).astype(np.int16)
        return Matrix((codes - 32) * by_sixteen(blocks[..., 192:208].view(np.int8)), of_eight(208))
    if kind == "Q2_K":
        both = by_sixteen(blocks[..., :16])
        numbers = two_bits(blocks[..., 16:80]) * (both & 15)
        return Matrix(numbers, of_eight(80), of_eight(82), both >> 4)
    if kind == "Q3_K":
        bit = blocks[..., :32].reshape(*shape, 1, GROUP) >> cells & 1
        codes = (two_bits(blocks[..., 32:96]) | bit << 2).astype(np.int16) - 4
        high = np.concatenate([blocks[..., 104:108] >> shift & 3 for shift in (0, 2, 4, 6)], -1)
        small = _nibbles(blocks[..., 96:104]) | high << 4
        return Matrix(codes * by_sixteen(small.astype(np.int16) - 32), of_eight(108))
    both = blocks[..., -128:].reshape(*shape, -1, 16 if kind == "IQ4_XS" else GROUP)
    if kind == "IQ4_XS":
        low = np.stack([blocks[..., 4:8] & 15, blocks[..., 4:8] >> 4], axis=-1).reshape(*shape, 8)
        high = blocks[..., 2:4].copy().view("<u2") >> 2 * cells[:, 0] & 3
        small = (low | high << 4).astype(np.float32) - 32
        return Matrix(
            np.array(_NON_LINEAR, np.int8)[_nibbles(both)], _half(blocks, 0)[..., None] * small
        )
    codes = np.stack([both & 15, both >> 4], axis=-2).reshape(*shape, 8, GROUP)
    if kind == "Q5_K":
        codes |= (blocks[..., 16:48].reshape(*shape, 1, GROUP) >> cells & 1) << 4
    first, second, third = np.split(blocks[..., 4:16], 3, axis=-1)
    scales = np.concatenate([first & 63, third & 15 | first >> 6 << 4], axis=-1)
    minima = np.concatenate([second & 63, third >> 4 | second >> 6 << 4], axis=-1)
    return Matrix(codes, _half(blocks, 0)[..., None] * scales, _half(blocks, 2)[..., None] * minima)
