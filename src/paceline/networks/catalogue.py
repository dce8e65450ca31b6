"""Drafter networks by name."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from paceline.core.options import arguments
from paceline.errors import InvalidOption
from paceline.networks.base import Geometry, Network
from paceline.networks.block_parallel import BlockParallel
from paceline.networks.draft_lm import DraftLM
from paceline.networks.eagle import Eagle
from paceline.networks.eagle3 import Eagle3
from paceline.networks.hydra import Hydra
from paceline.networks.kangaroo import Kangaroo
from paceline.networks.medusa import Medusa
from paceline.zoo.networks.chimera import Chimera
from paceline.zoo.networks.clover import Clover
from paceline.zoo.networks.ctc import CTC
from paceline.zoo.networks.falcon import Falcon
from paceline.zoo.networks.hidden_transfer import HiddenTransfer
from paceline.zoo.networks.longspec import LongSpec
from paceline.zoo.networks.s2d import S2D
from paceline.zoo.networks.specformer import SpecFormer

NETWORKS: dict[str, type[Network]] = {
    each.name: each
    for each in (
        *(Medusa, Hydra, Clover, Eagle, Eagle3, Chimera),
        *(Falcon, CTC, SpecFormer, BlockParallel, S2D),
        *(DraftLM, Kangaroo, LongSpec, HiddenTransfer),
    )
}


def build(name: str, geometry: Geometry, settings: Mapping[str, Any]) -> Network:
    """Build a network from settings, as values or as the text of an option.

    Raises:
        InvalidOption: the network or a setting is unknown, or a value is invalid.
    """
    if name not in NETWORKS:
        raise InvalidOption(f"network {name!r} is unknown: use {', '.join(NETWORKS)}")
    texts = {
        key: value if isinstance(value, str) else json.dumps(value)
        for key, value in settings.items()
    }
    given = arguments(NETWORKS[name], "network", texts)
    for key, value in given.items():
        if value < 0:
            raise InvalidOption(f"{key} of network '{name}' must not be below 0, as {value} is")
    network: Network = NETWORKS[name](geometry, **given)
    return network
