"""Trained networks on disk: safetensors with the network's description and provenance."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from safetensors import SafetensorError, safe_open

from paceline.errors import InvalidOption
from paceline.networks.base import Network, describe, geometry_from
from paceline.networks.catalogue import build
from paceline.networks.screen import SCREEN, Screen, read_screen
from paceline.networks.tensor_file import write_tensors
from paceline.types import IntArray, LogitArray

_IDS = "draft_ids"


@dataclass(frozen=True, slots=True)
class Trained:
    """A network with its parameters (float32) and provenance ("model": the target's fingerprint).

    `draft_ids` is int64 `[draft vocabulary]`, ascending. `screen` is the head preview; it stays
    valid for changed parameters, since the head is frozen and errors cost acceptance alone.
    """

    network: Network
    parameters: Mapping[str, LogitArray]
    draft_ids: IntArray
    metadata: Mapping[str, str]
    screen: Screen | None = None


def save_network(path: Path, trained: Trained) -> None:
    """Write a network and its head preview as float16, atomically; raises InvalidOption."""
    screen = trained.screen.tensors() if trained.screen is not None else {}
    tensors: dict[str, np.ndarray] = {
        name: array.astype(np.float16) for name, array in {**trained.parameters, **screen}.items()
    }
    tensors[_IDS] = trained.draft_ids.astype(np.int32)
    metadata = {**trained.metadata, "network": json.dumps(describe(trained.network))}
    write_tensors(path, tensors, metadata)


def read_metadata(path: Path) -> dict[str, str]:
    """Read a weights file's header; raises InvalidOption if it is missing or damaged."""
    try:
        with safe_open(path, framework="numpy") as file:
            return dict(file.metadata() or {})
    except FileNotFoundError as error:
        raise InvalidOption(f"there is no file {path}: name trained weights") from error
    except (SafetensorError, OSError) as error:
        raise InvalidOption(f"{path} is damaged ({error}): train or fetch it again") from error


def load_network(path: Path) -> Trained:
    """Read a network; raises InvalidOption if the file is missing, damaged, or holds none."""
    try:
        with safe_open(path, framework="numpy") as file:
            metadata = file.metadata() or {}
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
        entry: dict[str, Any] = json.loads(metadata["network"])
        network = build(entry["network"], geometry_from(entry["geometry"]), entry["settings"])
        expected = network.shapes()
    except FileNotFoundError as error:
        raise InvalidOption(f"there is no file {path}: name trained weights") from error
    except (SafetensorError, OSError, LookupError, ValueError, TypeError, AttributeError) as error:
        raise InvalidOption(
            f"{path} holds no drafter network, or is damaged ({error}): train or fetch it again"
        ) from error
    ids = tensors.pop(_IDS, None)
    factors = {name: tensors.pop(name) for name in SCREEN if name in tensors}
    shapes = {name: array.shape for name, array in tensors.items()}
    if ids is None or ids.ndim != 1 or shapes != expected:
        raise InvalidOption(
            f"{path} does not hold the tensors of network '{network.name}': train it again"
        )
    ids = ids.astype(np.int64)
    if not len(ids) or ids[0] < 0 or (np.diff(ids) <= 0).any():
        raise InvalidOption(f"{path} has draft ids out of order: train it again")
    if ids[-1] >= network.geometry.vocab_size or not all(
        np.isfinite(array).all() for array in tensors.values()
    ):
        raise InvalidOption(f"{path} holds impossible numbers: train it again")
    screen = read_screen(factors, network.geometry.width, len(ids))
    if factors and screen is None:
        raise InvalidOption(
            f"{path} has a screen that does not fit its network: fit one with `paceline train "
            "screen`"
        )
    parameters = {name: array.astype(np.float32) for name, array in tensors.items()}
    return Trained(network, parameters, ids, metadata, screen)
