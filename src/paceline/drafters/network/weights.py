"""Weights of a trained drafter: lookup, checks and cuts."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

from paceline.core.types import Capabilities
from paceline.errors import InvalidOption
from paceline.networks.catalogue import build
from paceline.networks.weights import Trained, load_network, shipped_file


def fitting(path: Path, name: str, model: str, target: Capabilities) -> Trained:
    """Load a file's weights. InvalidOption: damaged, or of another network or target."""
    trained = load_network(path)
    if trained.network.name != name:
        raise InvalidOption(
            f"{path} holds network '{trained.network.name}': use --drafter "
            f"{trained.network.name}:weights={path}"
        )
    shape = trained.network.geometry
    fits = (shape.vocab_size, shape.width) == (target.vocab_size, target.hidden_size)
    if trained.metadata.get("model") != model or not fits:
        raise InvalidOption(
            f"{path} was trained for another model: train one with `paceline train drafter {name}`"
        )
    return trained


def digest_of(path: Path, sizes: Mapping[str, str]) -> str:
    """Return a digest of a readable weights file, with the sizes it is cut to."""
    content = hashlib.sha256(path.read_bytes()).hexdigest()[:16]
    return " ".join([content, *(f"{key}={value}" for key, value in sorted(sizes.items()))])


def resized(trained: Trained, sizes: Mapping[str, str]) -> Trained:
    """Cut a network to other sizes, given as text. InvalidOption: unknown, or larger than it is."""
    if not sizes:
        return trained
    whole = trained.network
    network = build(whole.name, whole.geometry, {**whole.settings(), **sizes})
    shapes = {name: array.shape for name, array in trained.parameters.items()}
    if not network.shapes().items() <= shapes.items():
        raise InvalidOption(
            f"the weights of drafter '{whole.name}' hold {whole.settings()}, which is less than "
            f"{dict(sizes)}: choose smaller sizes"
        )
    parameters = {name: trained.parameters[name] for name in network.shapes()}
    return replace(trained, network=network, parameters=parameters)


def shipped(name: str, model: str) -> Path:
    """Return the weights file that ships for a network and a target. InvalidOption: none does."""
    path = shipped_file(name, model)
    if path is not None:
        return path
    raise InvalidOption(
        f"no weights ship for drafter '{name}' and this model: train some with `paceline train "
        f"drafter {name}`, and name them with {name}:weights=FILE"
    )
