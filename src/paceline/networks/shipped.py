"""Model cards of the drafter weights in the package, from the files' own metadata."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass
from importlib.resources import as_file, files
from pathlib import Path
from typing import Any

from safetensors import SafetensorError, safe_open

from paceline.errors import InvalidOption
from paceline.networks.screen import SCREEN
from paceline.networks.weights import read_metadata

_SHIPPED = "paceline.weights"
_IDS = "draft_ids"


@dataclass(frozen=True, slots=True)
class ShippedCard:
    """Card of one weights file: its size, network or rule, and metadata with JSON decoded.

    `draft_vocabulary` is None if the weights do not set it; `parameters` omits the head preview.
    """

    file: str
    bytes: int
    kind: str
    settings: Mapping[str, Any]
    parameters: int
    draft_vocabulary: int | None
    metadata: Mapping[str, Any]


def shipped_file(kind: str, model: str) -> Path | None:
    """Return the packaged file of a network (or "ppd") for a target's fingerprint, or None."""
    with as_file(files(_SHIPPED)) as folder:
        paths = sorted(folder.glob(f"{kind}-*.safetensors"))
        return next((path for path in paths if read_metadata(path).get("model") == model), None)


def shipped_cards() -> list[ShippedCard]:
    """Return the cards of all packaged weights, by file name."""
    with as_file(files(_SHIPPED)) as folder:
        return [read_card(path) for path in sorted(folder.glob("*.safetensors"))]


def read_card(path: Path) -> ShippedCard:
    """Read the card of one file from its header; raises InvalidOption if it does not fit."""
    try:
        with safe_open(path, framework="numpy") as file:
            metadata = {key: _decoded(text) for key, text in (file.metadata() or {}).items()}
            shapes = {name: file.get_slice(name).get_shape() for name in file.keys()}  # noqa: SIM118
        size = path.stat().st_size
    except (SafetensorError, OSError) as error:
        raise InvalidOption(f"{path} is no file of weights ({error}): fetch it again") from error
    network = metadata.pop("network", metadata.pop("kind", None))
    described = network if isinstance(network, dict) else {"network": network}
    if not isinstance(described.get("network"), str):
        raise InvalidOption(f"{path} does not say what it holds: train or fetch it again")
    ids = shapes.pop(_IDS, None)
    return ShippedCard(
        path.name,
        size,
        described["network"],
        described.get("settings", {}),
        sum(math.prod(shape) for name, shape in shapes.items() if name not in SCREEN),
        None if ids is None else ids[0],
        metadata,
    )


def _decoded(text: str) -> Any:
    # JSON objects only; anything else stays text.
    try:
        value = json.loads(text)
    except ValueError:
        return text
    return value if isinstance(value, dict) else text
