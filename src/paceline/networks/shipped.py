"""Cards of the weights that ship with the package, from what their files say of themselves."""

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
    """What a file of weights is, and where it comes from.

    Attributes:
        file: its name.
        bytes: its size.
        kind: name of the network, or of the rule that a head belongs to.
        settings: of the network; empty if it has none.
        parameters: how many numbers were trained.
        draft_vocabulary: tokens that can be drafted; None if that is not a matter of the weights.
        metadata: all that the file says, values of JSON decoded.
    """

    file: str
    bytes: int
    kind: str
    settings: Mapping[str, Any]
    parameters: int
    draft_vocabulary: int | None
    metadata: Mapping[str, Any]


def shipped_file(kind: str, model: str) -> Path | None:
    """The file that ships for a network, or for prompt tokens ("ppd"), and a target.

    Args:
        kind: what its name begins with.
        model: fingerprint of the target's weights.
    """
    with as_file(files(_SHIPPED)) as folder:
        paths = sorted(folder.glob(f"{kind}-*.safetensors"))
        return next((path for path in paths if read_metadata(path).get("model") == model), None)


def shipped_cards() -> list[ShippedCard]:
    """Of all weights that ship, by name of the file."""
    with as_file(files(_SHIPPED)) as folder:
        return [read_card(path) for path in sorted(folder.glob("*.safetensors"))]


def read_card(path: Path) -> ShippedCard:
    """The card of one file, of which only the head is read.

    Raises:
        InvalidOption: the file is missing, damaged, or does not say what it is.
    """
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
    """JSON objects as such; anything else stays text."""
    try:
        value = json.loads(text)
    except ValueError:
        return text
    return value if isinstance(value, dict) else text
