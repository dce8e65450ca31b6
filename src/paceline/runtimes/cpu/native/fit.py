"""Support check of drafter networks by the native kernels, and conversion of their weights."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from paceline.core.types import LogitArray
from paceline.native.library import attends
from paceline.native.packed import GROUP, quantize_int4
from paceline.networks.base import Network
from paceline.networks.head_preview import SCREEN, HeadPreview
from paceline.runtimes.cpu.native.lowering import LANES
from paceline.runtimes.weights import Tensors, pack

# Matrices with any number of rows: only picking reads their results.
_ODD = ("head", "blank")


def columns_of(precision: str) -> int:
    """Return the divisor of matrix widths: for "fp32", or for any other (int8)."""
    return LANES if precision == "fp32" else GROUP


def takes(network: Network, precision: str) -> bool:
    """Return whether native kernels support a network: full context, no target caches, and widths
    that matmuls and attention take.

    The target must run natively; `precision` is that of the matrices, "fp32" or "int8".
    """
    shape, columns = network.geometry, columns_of(precision)

    def fits(name: str, size: tuple[int, ...]) -> bool:
        rows, width = size if len(size) == 2 else (0, size[0])
        if name == "slots" or len(size) == 1:
            return width % LANES == 0
        return width % columns == 0 and (rows % LANES == 0 or name in _ODD)

    return (
        not network.reach
        and not network.reads_target
        and shape.width % columns == 0
        and attends(shape.heads, shape.kv_heads, shape.head_dim)
        and all(fits(name, size) for name, size in network.shapes().items())
    )


def padded(tensors: Tensors) -> Tensors:
    """Pad odd matrices with zero rows to whole blocks."""
    out = dict(tensors)
    for name in _ODD:
        for part in ("weight", "scale"):
            array = tensors.get(f"{name}.{part}")
            if array is not None and len(array) % LANES:
                out[f"{name}.{part}"] = np.pad(array, ((0, -len(array) % LANES), (0, 0)))
    return out


# Parts of the names of feed-forward matrices.
_NARROW = {"gate_up", "up", "down"}


def quantized_int4(
    tensors: Tensors, parameters: Mapping[str, LogitArray], precision: str
) -> Tensors:
    """Quantize feed-forward matrices to int4 where the network permits it.

    Args:
        tensors: from `weights.packed`.
        parameters: of the network, float32.
        precision: "fp32" changes nothing.
    """
    if precision == "fp32":
        return tensors
    out = dict(tensors)
    for name, matrix in parameters.items():
        if matrix.ndim == 2 and not _NARROW.isdisjoint(name.split(".")):
            del out[f"{name}.scale"]
            out |= {f"{name}.{part}": array for part, array in quantize_int4(matrix).items()}
    return out


def packed_head_preview(head_preview: HeadPreview | None, precision: str) -> Tensors:
    """Return both matrices of the head preview, compressed and padded; the larger is int4.

    Without a head preview the result is empty.
    """
    if head_preview is None:
        return {}
    rank, rows = head_preview.up.shape[1], len(head_preview.up)
    more = -rank % columns_of(precision)
    down = np.pad(head_preview.down, ((0, more), (0, 0)))
    up = np.pad(head_preview.up, ((0, -rows % LANES), (0, more)))
    fp32 = precision == "fp32"
    parts = pack(down, "fp32" if fp32 else "int8"), pack(up, "fp32") if fp32 else quantize_int4(up)
    return {
        f"{name}.{part}": array
        for name, matrix in zip(SCREEN, parts, strict=True)
        for part, array in matrix.items()
    }
