"""Random matrices in every block format, as files hold them, and what they stand for."""

from __future__ import annotations

from typing import Any

import gguf
import numpy as np

from paceline.native.library import CMatrix
from paceline.native.packed import KINDS, Packed

# Where the half-precision scales of a block of 256 lie.
_HALVES = {"Q4_K": (0, 2), "Q5_K": (0, 2), "Q6_K": (208,)}


def blocks(kind: str, outputs: int, inputs: int, seed: int = 0) -> tuple[Any, Any]:
    """uint8 rows, and their float32 `[outputs, inputs]` by the `gguf` package."""
    rng = np.random.default_rng(seed)
    number = gguf.GGMLQuantizationType[kind]
    if kind in _HALVES:
        size = gguf.GGML_QUANT_SIZES[number][1]
        raw = rng.integers(0, 256, (outputs, inputs // 256, size), dtype=np.uint8)
        for at in _HALVES[kind]:
            scale = rng.uniform(0.001, 0.01, (outputs, inputs // 256, 1)).astype(np.float16)
            raw[:, :, at : at + 2] = scale.view(np.uint8)
        raw = raw.reshape(outputs, -1)
    else:
        matrix = rng.standard_normal((outputs, inputs)).astype(np.float32)
        raw = np.ascontiguousarray(gguf.quantize(matrix, number)).view(np.uint8)
    return raw, gguf.dequantize(raw, number).reshape(outputs, inputs).astype(np.float32)


def packed(to: Packed, kind: str, matrix: Any, **more: Any) -> CMatrix:
    """float32 `[outputs, inputs]`, in a format that the `gguf` package writes."""
    raw = gguf.quantize(np.ascontiguousarray(matrix), gguf.GGMLQuantizationType[kind])
    return to.matrix(kind, np.ascontiguousarray(raw).view(np.uint8), matrix.shape[1], **more)


def width_of(kind: str, cells: int) -> int:
    """So many inputs in whole blocks."""
    return cells * (256 if kind in _HALVES else 32)


ALL = tuple(KINDS)
