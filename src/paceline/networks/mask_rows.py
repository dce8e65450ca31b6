"""Trained mask rows on disk: a mask embedding, and a low-rank adapter of attention matrices that
mask rows alone are multiplied with.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from paceline.core.types import LogitArray
from paceline.errors import InvalidOption
from paceline.networks.weights import read_tensors, write_tensors

# Name in the metadata.
NETWORK = "mask-rows"

# Parts of a layer that are adapted.
PARTS = ("q", "k", "v", "o")

_TRAIN = "train some with `paceline train mask-rows`"


@dataclass(frozen=True, slots=True)
class MaskRows:
    """What makes a frozen model predict at masked places.

    Attributes:
        embedding: float32 `[hidden_size]`, of the mask.
        down: float32 `[rank, inputs]` by canonical name of the matrix W.
        up: float32 `[outputs, rank]`; a mask row is multiplied with W + up down.
        metadata: provenance, as text; "model" is the fingerprint of the model's weights.
    """

    embedding: LogitArray
    down: Mapping[str, LogitArray]
    up: Mapping[str, LogitArray]
    metadata: Mapping[str, str]


def save_mask_rows(path: Path, trained: MaskRows) -> None:
    """Write mask rows as float16, atomically; raises InvalidOption if it cannot be written."""
    tensors = {"embedding": trained.embedding}
    tensors |= {f"{name}.down": each for name, each in trained.down.items()}
    tensors |= {f"{name}.up": each for name, each in trained.up.items()}
    halves: dict[str, np.ndarray] = {name: x.astype(np.float16) for name, x in tensors.items()}
    write_tensors(path, halves, {**trained.metadata, "network": NETWORK})


def load_mask_rows(path: Path, model: str, shapes: Mapping[str, tuple[int, int]]) -> MaskRows:
    """Read mask rows of a model, by fingerprint and `(outputs, inputs)` of its matrices.

    Raises:
        InvalidOption: the file is missing, damaged, of another kind, or of another model.
    """
    tensors, metadata = read_tensors(path, "mask rows")
    if metadata.get("network") != NETWORK:
        raise InvalidOption(f"{path} holds no mask rows: {_TRAIN}")
    if metadata.get("model") != model:
        raise InvalidOption(f"{path} was trained for another model: {_TRAIN}")
    wide = {name: array.astype(np.float32) for name, array in tensors.items()}
    embedding = wide.pop("embedding", np.zeros(0, dtype=np.float32))
    down = {name: wide.pop(f"{name}.down", embedding) for name in shapes}
    up = {name: wide.pop(f"{name}.up", embedding) for name in shapes}
    fits = not wide and all(
        down[name].shape[1:] == (inputs,) and up[name].shape == (outputs, len(down[name]))
        for name, (outputs, inputs) in shapes.items()
    )
    if not fits or not all(np.isfinite(each).all() for each in tensors.values()):
        raise InvalidOption(f"{path} is damaged, or of another shape: {_TRAIN}")
    return MaskRows(embedding, down, up, metadata)
