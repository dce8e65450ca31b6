"""Which drafter networks native operations take, and weights as they take them."""

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

_ODD = ("head", "blank")
"""Matrices that may have any number of rows: nothing but a choice reads what they give."""


def columns_of(precision: str) -> int:
    """What the width of a matrix is a multiple of: "fp32", or any other, which is int8."""
    return LANES if precision == "fp32" else GROUP


def takes(network: Network, precision: str) -> bool:
    """Whether native operations run a network: one that sees its whole context, nothing of the
    target's caches, and whose rows are as wide as products and attention want them.

    Args:
        network: of a target that runs by such operations.
        precision: of its matrices, "fp32" or "int8".
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
    """The same with rows of zeros behind odd matrices, which then have whole blocks of rows.

    Args:
        tensors: from `network_weights.packed`.
    """
    out = dict(tensors)
    for name in _ODD:
        for part in ("weight", "scale"):
            array = tensors.get(f"{name}.{part}")
            if array is not None and len(array) % LANES:
                out[f"{name}.{part}"] = np.pad(array, ((0, -len(array) % LANES), (0, 0)))
    return out


# Matrices of a network that native operations read with four bits.

_NARROW = {"gate_up", "up", "down"}
"""Parts of the names of feed-forward matrices."""


def quantized_int4(
    tensors: Tensors, parameters: Mapping[str, LogitArray], precision: str
) -> Tensors:
    """The same with four bits where a network bears it.

    Args:
        tensors: from `network_weights.packed`.
        parameters: of the network, float32.
        precision: of its matrices; "fp32" leaves them as they are.
    """
    if precision == "fp32":
        return tensors
    out = dict(tensors)
    for name, matrix in parameters.items():
        if matrix.ndim == 2 and not _NARROW.isdisjoint(name.split(".")):
            del out[f"{name}.scale"]
            out |= {f"{name}.{part}": array for part, array in quantize_int4(matrix).items()}
    return out


# A screen's matrices as native operations take them.


def packed_head_preview(head_preview: HeadPreview | None, precision: str) -> Tensors:
    """Both matrices, compressed, with zeros up to whole blocks; the larger one has four bits.

    Args:
        screen: of the network; without one there are no matrices.
        precision: of the network's matrices, "fp32"; any other stands for "int8".
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
