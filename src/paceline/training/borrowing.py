"""The target's tensors that a network runs as its own."""

from __future__ import annotations

import re
from dataclasses import replace

from paceline.errors import InvalidOption
from paceline.models.config import ModelConfig
from paceline.models.weights import Weights
from paceline.networks.base import Network
from paceline.options import require
from paceline.runtimes.openvino_weights import prepare
from paceline.types import LogitArray


def borrow(network: Network, config: ModelConfig, weights: Weights) -> dict[str, LogitArray]:
    """Float32, by the network's own names (`Network.borrowed`); none if it borrows nothing.

    Args:
        network: what borrows.
        config: of the target.
        weights: of the target.

    Raises:
        InvalidOption: the network takes all of the target's layers or more, or the target has
            layers that networks cannot compute: projections with a bias, normed queries, or
            scaled rotary positions.
    """
    if not network.runs:
        return {}
    most = config.layers - 1
    require(network.exit <= most, f"exit of network '{network.name}'", network.exit, f"1 to {most}")
    if config.qkv_bias or config.qk_norm or config.rope_divisors is not None:
        raise InvalidOption(
            f"network '{network.name}' runs layers of its target, and not those of this "
            f"{config.family} model: train another network, such as draft-lm"
        )
    first = network.runs.start
    part = replace(config, layers=len(network.runs))
    tensors = prepare(part, _Above(weights, first), "fp32")
    out = {}
    for mine, theirs in network.borrowed().items():
        _, layer, name = theirs.split(".")
        ours = f"layers.{int(layer) - first}.{name}"
        out[mine] = tensors[ours] if ours in tensors else tensors[f"{ours}.weight"]
    return out


class _Above:
    """A target's weights without its first layers: those that are left count from 0."""

    def __init__(self, weights: Weights, first: int) -> None:
        self._weights = weights
        self._first = first

    def __getitem__(self, name: str) -> LogitArray:
        return self._weights[self._theirs(name)]

    def __contains__(self, name: object) -> bool:
        return isinstance(name, str) and self._theirs(name) in self._weights

    def _theirs(self, name: str) -> str:
        layer = re.match(r"model\.layers\.(\d+)(.*)", name)
        return f"model.layers.{int(layer[1]) + self._first}{layer[2]}" if layer else name
