"""Which drafter networks native operations take, and weights as they take them."""

from __future__ import annotations

import numpy as np

from paceline.native.library import attends
from paceline.native.packed import GROUP
from paceline.networks.base import Network
from paceline.runtimes.native_network_rows import LANES
from paceline.runtimes.network_weights import Tensors

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
