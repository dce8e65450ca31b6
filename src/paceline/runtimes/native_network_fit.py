"""Which drafter networks native operations take, and weights as they take them."""

from __future__ import annotations

import numpy as np

from paceline.networks.base import Network
from paceline.runtimes.native_network_rows import LANES
from paceline.runtimes.network_weights import Tensors

_GROUP = 64
"""Activations that share a scale where matrices are int8."""

_WIDEST = 256
"""Most numbers of a head."""

_QUERIES = 48
"""Query heads that may share a head of keys."""

_ODD = ("head", "blank")
"""Matrices that may have any number of rows: nothing but a choice reads what they give."""


def columns_of(precision: str) -> int:
    """What the width of a matrix is a multiple of: "fp32", or any other, which is int8."""
    return LANES if precision == "fp32" else _GROUP


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
        and shape.head_dim % LANES == 0
        and shape.head_dim <= _WIDEST
        and shape.heads <= _QUERIES * shape.kv_heads
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
