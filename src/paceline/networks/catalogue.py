"""Drafter networks by name: built in, and entry points in group `paceline.networks`."""

from __future__ import annotations

import json
from collections.abc import Mapping
from importlib.metadata import entry_points
from pkgutil import resolve_name
from typing import TYPE_CHECKING, Any

from paceline.core.options import arguments
from paceline.errors import InvalidOption
from paceline.networks.base import drafter_config

if TYPE_CHECKING:
    from paceline.models.config import ModelConfig
    from paceline.networks.base import Network

GROUP = "paceline.networks"

# A class, or where it is.
NETWORKS: dict[str, str | type[Network]] = {
    "eagle3": "paceline.networks.eagle3:Eagle3",
    "dflash": "paceline.networks.dflash:DFlash",
}


def names() -> tuple[str, ...]:
    """Return the networks built in, registered in `NETWORKS`, and of entry points."""
    return *NETWORKS, *entry_points(group=GROUP).names


def find(name: str) -> type[Network]:
    """Return the class of a network; InvalidOption if unknown, or if its plugin is unusable."""
    found: type[Network]
    if name in NETWORKS:
        known = NETWORKS[name]
        found = resolve_name(known) if isinstance(known, str) else known
        return found
    for point in entry_points(group=GROUP, name=name):
        try:
            found = point.load()
        except Exception as error:
            raise InvalidOption(
                f"plugin {point.value} cannot be loaded ({error}): mend or uninstall it"
            ) from error
        return found
    raise InvalidOption(f"network {name!r} is unknown: use {', '.join(names())}")


def build(name: str, target: ModelConfig, settings: Mapping[str, Any]) -> Network:
    """Build a network for a target, from settings as values or as the text of an option.

    Raises:
        InvalidOption: the network or a setting is unknown, or a value is invalid.
    """
    kind = find(name)
    texts = {
        key: value if isinstance(value, str) else json.dumps(value)
        for key, value in settings.items()
    }
    given = arguments(kind, "network", texts)
    for key, value in given.items():
        if value < 0:
            raise InvalidOption(f"{key} of network '{name}' must not be below 0, as {value} is")
    return kind(drafter_config(target), **given)
