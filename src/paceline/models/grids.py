"""Types of GGUF files with grids, and of three values, expanded exactly to codes of eight bits.

A number of theirs is a float of its block, times a small integer for 16 numbers, times one of the
grid: so says type I8_K of `native.blocks`, which the kernels run. It takes 8.6 bits a number.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from paceline.native.blocks import TYPES

Bytes = npt.NDArray[np.uint8]
_PIECE = 1 << 22  # numbers expanded at once: that takes several times their room


class _Parts(NamedTuple):
    # Of blocks: `scale` and a factor, exact in float32; integers [16], or [8] for 32 numbers each;
    # codes, int8 in any shape.
    scale: npt.NDArray[Any]
    factor: float
    small: npt.NDArray[Any] | int
    codes: npt.NDArray[Any]


def expand(kind: str, rows: Bytes) -> Bytes:
    """Return rows of blocks of a type in `GRIDS`, uint8 `[rows, bytes]`, as rows of I8_K."""
    out = np.empty((len(rows), rows.shape[1] // TYPES[kind].size, TYPES["I8_K"].size), np.uint8)
    step = max(1, _PIECE // (256 * out.shape[1]))
    for begin in range(0, len(rows), step):
        piece = out[begin : begin + step].reshape(-1, out.shape[2])
        blocks = np.ascontiguousarray(rows[begin : begin + step]).reshape(-1, TYPES[kind].size)
        scale, factor, small, codes = GRIDS[kind](blocks)
        scale = scale.view("<f2").astype("<f4").reshape(-1, 1) * np.float32(factor)
        piece[:, :4] = scale.view(np.uint8)
        if isinstance(small, np.ndarray):
            small = small.reshape(len(blocks), -1)
            small = small.repeat(16 // small.shape[1], axis=1)
        piece[:, 4:20] = small
        piece[:, 20:] = codes.reshape(len(blocks), 256).view(np.uint8)
    return out.reshape(len(rows), -1)


@cache
def _grid(kind: str, times: int = 1) -> npt.NDArray[Any]:
    # Eight or four codes in one number, so that they are looked up at once.
    import gguf.quants

    known = getattr(gguf.quants, kind)
    known.init_grid()
    codes = (times * known.grid[0, 0]).astype(np.int8)
    return np.ascontiguousarray(codes).view(f"<u{codes.shape[1]}")[:, 0]


@cache
def _masks() -> npt.NDArray[Any]:
    # By byte: -1 for every bit that is set.
    bits = np.unpackbits(np.arange(256, dtype=np.uint8)[:, None], axis=1, bitorder="little")
    return (255 * bits).view("<u8")[:, 0]


@cache
def _even() -> npt.NDArray[Any]:
    # Signs of eight numbers by seven bits: the eighth makes them even.
    numbers = np.arange(128, dtype=np.uint8)
    odd = np.unpackbits(numbers[:, None], axis=1).sum(axis=1, dtype=np.uint8) & 1
    out: npt.NDArray[Any] = numbers | odd << 7
    return out


def _signed(codes: npt.NDArray[Any], signs: npt.NDArray[Any]) -> npt.NDArray[Any]:
    # Codes by grid entry, and a bit of sign for each.
    minus = _masks()[signs].reshape(-1).view(np.int8)
    out: npt.NDArray[Any] = (codes.reshape(-1).view(np.int8) ^ minus) - minus
    return out


def _shifted(numbers: npt.NDArray[Any], *shifts: int) -> npt.NDArray[Any]:
    # Of each number several, moved down, side by side.
    out: npt.NDArray[Any] = numbers[..., None] >> np.array(shifts, numbers.dtype)
    return out


def _odd(small: npt.NDArray[Any]) -> npt.NDArray[Any]:
    return 2 * small + 1


def _high(low: Bytes, high: npt.NDArray[Any], bits: int, *shifts: int) -> npt.NDArray[Any]:
    # Indices, from their low bytes and what lies above.
    above = _shifted(high, *shifts).astype(np.uint16) & (1 << bits) - 1
    out: npt.NDArray[Any] = low | above.reshape(len(low), -1) << 8
    return out


def _iq2_xxs(of: Bytes) -> _Parts:
    both = of[:, 2:].reshape(-1, 8, 8)
    words = both[..., 4:].copy().view("<u4")[..., 0]
    signs = _even()[_shifted(words, 0, 7, 14, 21) & 127]
    codes = _signed(_grid("IQ2_XXS")[both[..., :4]], signs)
    return _Parts(of[:, :2].copy(), 1 / 8, _odd(words >> 28), codes)


def _iq2_xs(of: Bytes) -> _Parts:
    words = of[:, 2:66].copy().view("<u2")
    codes = _signed(_grid("IQ2_XS")[words & 511], _even()[words >> 9])
    return _Parts(of[:, :2].copy(), 1 / 8, _odd(_shifted(of[:, 66:], 0, 4) & 15), codes)


def _iq2_s(of: Bytes) -> _Parts:
    index = _high(of[:, 2:34], of[:, 66:74], 2, 0, 2, 4, 6)
    codes = _signed(_grid("IQ2_S")[index], of[:, 34:66])
    return _Parts(of[:, :2].copy(), 1 / 8, _odd(_shifted(of[:, 74:], 0, 4) & 15), codes)


def _iq3_xxs(of: Bytes) -> _Parts:
    words = of[:, 66:].copy().view("<u4")
    signs = _even()[_shifted(words, 0, 7, 14, 21) & 127]
    return _Parts(
        of[:, :2].copy(), 1 / 4, _odd(words >> 28), _signed(_grid("IQ3_XXS")[of[:, 2:66]], signs)
    )


def _iq3_s(of: Bytes) -> _Parts:
    index = _high(of[:, 2:66], of[:, 66:74], 1, *range(8))
    codes = _signed(_grid("IQ3_S")[index], of[:, 74:106])
    return _Parts(of[:, :2].copy(), 1, _odd(_shifted(of[:, 106:], 0, 4) & 15), codes)


def _with_delta(index: npt.NDArray[Any], minus: npt.NDArray[Any]) -> npt.NDArray[Any]:
    # Eighths: eight times those of the grid, and one more or less by grid entry.
    codes = _grid("IQ1_S", 8)[index].reshape(-1, 1).view(np.int8)
    out: npt.NDArray[Any] = codes + np.where(minus, np.int8(-1), np.int8(1)).reshape(-1, 1)
    return out


def _iq1_s(of: Bytes) -> _Parts:
    words = of[:, 34:].copy().view("<u2")
    index = _high(of[:, 2:34], words, 3, 0, 3, 6, 9)
    codes = _with_delta(index, (words >> 15).repeat(4, axis=1))
    return _Parts(of[:, :2].copy(), 1 / 8, _odd(words >> 12 & 7), codes)


def _iq1_m(of: Bytes) -> _Parts:
    words = of[:, 48:].copy().view("<u2")
    scale = (words >> 12 << np.array([0, 4, 8, 12], np.uint16)).sum(axis=1, dtype=np.uint16)
    high = of[:, 32:48]
    codes = _with_delta(_high(of[:, :32], high, 3, 0, 4), _shifted(high, 3, 7) & 1)
    return _Parts(scale, 1 / 8, _odd(_shifted(words, 0, 3, 6, 9) & 7), codes)


def _tq1_0(of: Bytes) -> _Parts:
    # Five, at the end four, digits to the base of three in a byte, as fractions of 256.
    powers = np.array([1, 3, 9, 27, 81], np.uint8)[:, None]
    parts = [
        (of[:, begin:end, None].swapaxes(1, 2) * powers[:digits]).reshape(len(of), -1)
        for begin, end, digits in ((0, 32, 5), (32, 48, 5), (48, 52, 4))
    ]
    digits = np.concatenate(parts, axis=1).astype(np.uint16) * 3 >> 8
    return _Parts(of[:, 52:].copy(), 1, 1, digits.astype(np.int8) - np.int8(1))


def _tq2_0(of: Bytes) -> _Parts:
    codes = of[:, :64].reshape(-1, 2, 1, 32) >> np.array([0, 2, 4, 6], np.uint8)[:, None] & 3
    return _Parts(of[:, 64:].copy(), 1, 1, codes.astype(np.int8) - np.int8(1))


GRIDS: dict[str, Callable[[Bytes], _Parts]] = {
    **{"IQ2_XXS": _iq2_xxs, "IQ2_XS": _iq2_xs, "IQ2_S": _iq2_s, "IQ3_XXS": _iq3_xxs},
    **{"IQ3_S": _iq3_s, "IQ1_S": _iq1_s, "IQ1_M": _iq1_m, "TQ1_0": _tq1_0, "TQ2_0": _tq2_0},
}
"""How a type's blocks, uint8 `[blocks, bytes]`, are taken apart."""
