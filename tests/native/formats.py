"""Random matrices in every block format, as files hold them, and what they stand for."""

from __future__ import annotations

from typing import Any

import gguf
import numpy as np

from paceline.native.blocks import KINDS, TYPES, width_of
from paceline.native.library import CMatrix
from paceline.native.packed import Packed

# Where half-precision scales lie in blocks that the `gguf` package does not write, and how large
# they are.
_HALVES = {
    **dict.fromkeys(("Q4_K", "Q5_K"), ((0, 2), 0.001)),
    **{"Q6_K": ((208,), 0.001), "Q2_K": ((80, 82), 0.01), "Q3_K": ((108,), 0.001)},
    **{"IQ4_NL": ((0,), 0.001), "IQ4_XS": ((0,), 0.0001)},
}


def blocks(kind: str, outputs: int, inputs: int, seed: int = 0) -> tuple[Any, Any]:
    """uint8 rows, and their float32 `[outputs, inputs]` by the `gguf` package."""
    rng = np.random.default_rng(seed)
    if kind == "I8_K":
        return _eight_bits(rng, outputs, inputs)
    number = gguf.GGMLQuantizationType[kind]
    if kind in _HALVES:
        _, block, size = TYPES[kind]
        raw = rng.integers(0, 256, (outputs, inputs // block, size), dtype=np.uint8)
        places, least = _HALVES[kind]
        for at in places:
            scale = rng.uniform(least, 10 * least, (outputs, inputs // block, 1))
            raw[:, :, at : at + 2] = scale.astype(np.float16).view(np.uint8)
        raw = raw.reshape(outputs, -1)
    else:
        matrix = rng.standard_normal((outputs, inputs)).astype(np.float32)
        raw = np.ascontiguousarray(gguf.quantize(matrix, number)).view(np.uint8)
    return raw, gguf.dequantize(raw, number).reshape(outputs, inputs).astype(np.float32)


def _eight_bits(rng: Any, outputs: int, inputs: int) -> tuple[Any, Any]:
    # No file has them: blocks of a float, 16 scales and 256 codes.
    shape = outputs, inputs // 256
    scale = rng.uniform(0.0001, 0.001, (*shape, 1)).astype(np.float32)
    small, codes = rng.integers(-31, 32, (*shape, 16)), rng.integers(-62, 63, (*shape, 256))
    raw = [scale.view(np.uint8), small.astype(np.int8).view(np.uint8)]
    raw = np.concatenate([*raw, codes.astype(np.int8).view(np.uint8)], axis=-1)
    values = scale * (codes * small.repeat(16, axis=-1)).astype(np.float32)
    return raw.reshape(outputs, -1), values.reshape(outputs, inputs)


def packed(to: Packed, kind: str, matrix: Any, **more: Any) -> CMatrix:
    """float32 `[outputs, inputs]`, in a format that the `gguf` package writes."""
    raw = gguf.quantize(np.ascontiguousarray(matrix), gguf.GGMLQuantizationType[kind])
    return to.matrix(kind, np.ascontiguousarray(raw).view(np.uint8), matrix.shape[1], **more)


def inputs_of(kind: str, blocks: int) -> int:
    """Inputs in so many whole blocks."""
    return blocks * width_of(kind)


ALL = KINDS
