"""A tower in NumPy: what the native one must give to the last bit."""

from __future__ import annotations

from collections.abc import Generator
from functools import cache

import numpy as np

from paceline.core.target import Rows
from paceline.core.types import LogitArray
from paceline.models.towers import Vision, look
from paceline.models.weights import Weights
from paceline.runtimes.cpu.matrices import Formats
from paceline.runtimes.reference.formats import matrix
from paceline.runtimes.reference.ops import AskedRows, ReferenceCache, ReferenceOps


class ReferenceTower:
    """Reads pictures, one at a time."""

    def __init__(self, vision: Vision, weights: Weights, precision: str = "file") -> None:
        self._vision = vision
        self._formats = formats = Formats(weights, precision)
        self._matrix = cache(lambda name: matrix(*formats.blocks(name)))

    def reading(self, patches: LogitArray) -> Generator[LogitArray | None, None, None]:
        """Yield the rows of a picture; see `CpuTower.reading`."""
        count, tower = len(patches), self._vision.tower
        keys = np.zeros((1, 2, 0, tower.heads, tower.wide_head), np.float32)
        every = np.ones((count, count), np.bool_)
        ids = np.zeros(count, np.int64)
        rows = Rows.block(ReferenceCache(keys), ids, np.arange(count), every)
        ops = ReferenceOps(self._formats, self._matrix, tower.eps, AskedRows(rows))
        with np.errstate(all="ignore"):
            yield look(ops, self._vision, patches)
