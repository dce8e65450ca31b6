"""The adapter of mask rows in a native program: other rows keep every bit."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from paceline.core.types import LogitArray
from paceline.models.gguf import quantize
from paceline.native.blocks import GROUP
from paceline.native.library import CMatrix
from paceline.native.packed import Packed
from paceline.networks.mask_rows import MaskRows

COUNT, ROWS = "masks", "mask_rows"
"""Names of the number of mask rows, and of the input that says which they are."""

_KIND = "F16"  # as on disk


class PackedMaskRows:
    """Packed adapter; matrices that read the same rows are packed as one."""

    def __init__(self, trained: MaskRows, mask: int, packed: Packed) -> None:
        """Bind them; `mask` is the id of the mask embedding."""
        self.mask = mask
        self._trained, self._packed = trained, packed
        self._pairs: dict[tuple[str, ...], tuple[CMatrix, CMatrix]] = {}

    def rows(self, ids: Sequence[int]) -> list[int]:
        """Return the mask rows of a batch."""
        return [row for row, token in enumerate(ids) if token == self.mask]

    def of(self, names: Sequence[str]) -> tuple[CMatrix, CMatrix] | None:
        """Return `down` and `up` of matrices side by side, None if they are not adapted."""
        known, key = self._trained, tuple(names)
        if key[0] in known.down and key not in self._pairs:
            downs, ups = ([part[name] for name in key] for part in (known.down, known.up))
            # Whole groups of inner columns, and each matrix reads its own.
            inner = -(-sum(map(len, downs)) // GROUP) * GROUP
            down = np.zeros((inner, downs[0].shape[1]), np.float32)
            up = np.zeros((sum(map(len, ups)), inner), np.float32)
            row = column = 0
            for one, other in zip(downs, ups, strict=True):
                down[column : column + len(one)] = one
                up[row : row + len(other), column : column + len(one)] = other
                row, column = row + len(other), column + len(one)
            self._pairs[key] = self._pack(down), self._pack(up)
        return self._pairs.get(key)

    def _pack(self, matrix: LogitArray) -> CMatrix:
        return self._packed.matrix(_KIND, quantize(_KIND, matrix), matrix.shape[1])
