"""Weights of a trained drafter: lookup and checks."""

from __future__ import annotations

import hashlib
from pathlib import Path

from paceline.core.types import Capabilities
from paceline.errors import InvalidOption
from paceline.networks.catalogue import find
from paceline.networks.published.wirings import DRAFTERS
from paceline.networks.weights import Trained, load_network, shipped_file
from paceline.weights import or_install


def fitting(path: Path, name: str, model: str, target: Capabilities) -> Trained:
    """Load a file's weights. InvalidOption: damaged, or of another network or target."""
    trained = load_network(path)
    if trained.network.name != name:
        raise InvalidOption(
            f"{path} holds network '{trained.network.name}': use --drafter "
            f"{trained.network.name}:weights={path}"
        )
    shape = trained.network.config
    fits = (shape.vocab_size, shape.hidden_size) == (target.vocab_size, target.hidden_size)
    if trained.metadata.get("model") != model or not fits:
        raise InvalidOption(
            f"{path} was trained for another model: train one with `{find(name).trained_by} {name}`"
        )
    return trained


def weights_of(name: str, file: str | None, model: str, target: Capabilities) -> Trained:
    """Load the weights that ship, or those of a file; errors as of `fitting` and `shipped`."""
    path = Path(file).expanduser() if file else shipped(name, model)
    return fitting(path, name, model, target)


def digest_of(path: Path) -> str:
    """Return a digest of a readable weights file."""
    return hashlib.sha256(path.read_bytes()).hexdigest()[:16]


def shipped(name: str, model: str) -> Path:
    """Return the weights file that ships for a network and a target. InvalidOption: none does."""
    path = shipped_file(name, model)
    if path is not None:
        return path
    published = ", or a published one with --draft-model" if name in DRAFTERS.values() else ""
    raise InvalidOption(
        f"no weights ship for drafter '{name}' and this model: {or_install()}train some with "
        f"`{find(name).trained_by} {name}`, and name them with {name}:weights=FILE{published}"
    )
