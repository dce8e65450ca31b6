"""Checkpoints of gpt-oss, whose experts of a layer lie in one tensor, as others have them.

There the tensor "gate_up_proj" has outputs of gates and of what they gate by turns. Its numbers are
either `[experts, inputs, outputs]`, or, where they are quantised, `[experts, outputs, inputs]`.
Here a part is a tensor `[experts, outputs, inputs]`.
"""

from __future__ import annotations

import re
from functools import partial

import numpy as np
import numpy.typing as npt

from paceline.core.types import IntArray, LogitArray
from paceline.errors import ModelError
from paceline.models.quantised import Made, QuantisedFiles
from paceline.models.safetensors import SafetensorsFiles, to_float32

_PART = re.compile(r"(.+\.experts)\.(gate|up|down)_proj\.(weight|bias)")


class StackedExperts:
    """Tensors of a checkpoint, with those of experts by part."""

    def __init__(self, files: SafetensorsFiles | QuantisedFiles) -> None:
        self._files = files

    def __contains__(self, name: object) -> bool:
        return self._whole(str(name))[0] in self._files

    def shape(self, name: str) -> tuple[int, ...]:
        theirs, turn = self._whole(name)
        count, *sizes = shape = self._files.shape(theirs)
        if turn is None:
            return shape
        if len(shape) != (2 if name.endswith(".bias") else 3):
            raise ModelError(
                f"tensor {theirs} has shape {list(shape)}, which holds no experts: download the "
                "model again"
            )
        if not isinstance(self._files.stored(theirs)[1], Made):
            sizes.reverse()
        return (count, sizes[0] // turn.step, *sizes[1:])

    def read(self, name: str, rows: slice = slice(None)) -> LogitArray:
        theirs, turn = self._whole(name)
        if turn is None:
            return self._files.read(theirs, rows)
        if name.endswith(".bias"):
            return np.ascontiguousarray(self._files.read(theirs, rows)[:, turn])
        kind, blocks = self._files.stored(theirs)
        if isinstance(blocks, Made):
            rows = slice(rows.start * turn.step + turn.start, rows.stop * turn.step, turn.step)
            return self._files.read(theirs, rows)
        _, blocks = self.stored(name)
        numbers = to_float32(blocks[rows].reshape(-1), kind)
        return numbers.reshape(-1, self.shape(name)[2])

    def stored(self, name: str) -> tuple[str, npt.NDArray[np.uint8] | Made]:
        theirs, turn = self._whole(name)
        kind, blocks = self._files.stored(theirs)
        if turn is None:
            return kind, blocks
        if isinstance(blocks, Made):
            return kind, blocks.part(turn)
        count, outputs, inputs = self.shape(name)
        numbers = blocks.reshape(count, inputs, outputs * turn.step, -1)[:, :, turn]
        return kind, Made(partial(_turned, numbers), range(count * outputs), outputs)

    def _whole(self, name: str) -> tuple[str, slice | None]:
        # The tensor that a part lies in, and which of its outputs; None if it is no part.
        found = _PART.fullmatch(name)
        if found is None:
            return name, None
        before, part, kind = found.groups()
        theirs = f"{before}.{part if part == 'down' else 'gate_up'}_proj"
        turn = slice(int(part == "up"), None, 1 if part == "down" else 2)
        return f"{theirs}_bias" if kind == "bias" else theirs, turn


def _turned(numbers: npt.NDArray[np.uint8], rows: IntArray) -> npt.NDArray[np.uint8]:
    # Rows of `[experts, inputs, outputs, bytes]`, of outputs of all experts one behind another.
    experts, outputs = np.divmod(rows, numbers.shape[2])
    return np.ascontiguousarray(numbers[experts, :, outputs]).reshape(len(rows), -1)
