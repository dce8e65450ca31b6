"""Matrices of a network that native operations read with four bits.

What a draft costs is mostly what its weights weigh. Feed-forward matrices, half of most networks,
bear four bits well, and so does a screen, whose best few logits are made exact anyway.
"""

from __future__ import annotations

from collections.abc import Mapping

from paceline.native.packed import narrow
from paceline.runtimes.network_weights import Tensors
from paceline.types import LogitArray

_NARROW = {"gate_up", "up", "down"}
"""Parts of the names of feed-forward matrices."""


def narrowed(tensors: Tensors, parameters: Mapping[str, LogitArray], precision: str) -> Tensors:
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
            out |= {f"{name}.{part}": array for part, array in narrow(matrix).items()}
    return out
