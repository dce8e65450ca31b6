"""A screen's matrices as native operations take them."""

from __future__ import annotations

import numpy as np

from paceline.native.packed import narrow
from paceline.networks.screen import SCREEN, Screen
from paceline.runtimes.native_network_fit import columns_of
from paceline.runtimes.native_network_rows import LANES
from paceline.runtimes.network_weights import Tensors
from paceline.runtimes.quantise import pack


def packed_screen(screen: Screen | None, precision: str) -> Tensors:
    """Both matrices, compressed, with zeros up to whole blocks; the larger one has four bits.

    Args:
        screen: of the network; without one there are no matrices.
        precision: of the network's matrices, "fp32"; any other stands for "int8".
    """
    if screen is None:
        return {}
    rank, rows = screen.up.shape[1], len(screen.up)
    more = -rank % columns_of(precision)
    down = np.pad(screen.down, ((0, more), (0, 0)))
    up = np.pad(screen.up, ((0, -rows % LANES), (0, more)))
    fp32 = precision == "fp32"
    parts = pack(down, "fp32" if fp32 else "int8"), pack(up, "fp32") if fp32 else narrow(up)
    return {
        f"{name}.{part}": array
        for name, matrix in zip(SCREEN, parts, strict=True)
        for part, array in matrix.items()
    }
