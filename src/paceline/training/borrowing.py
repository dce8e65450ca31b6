"""The target's tensors that a network runs as its own."""

from __future__ import annotations

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
    if not network.exit:
        return {}
    most = config.layers - 1
    require(network.exit <= most, f"exit of network '{network.name}'", network.exit, f"1 to {most}")
    if config.qkv_bias or config.qk_norm or config.rope_divisors is not None:
        raise InvalidOption(
            f"network '{network.name}' runs layers of its target, and not those of this "
            f"{config.family} model: train another network, such as draft-lm"
        )
    tensors = prepare(replace(config, layers=network.exit), weights, "fp32")
    return {
        mine: tensors[theirs] if theirs in tensors else tensors[f"{theirs}.weight"]
        for mine, theirs in network.borrowed().items()
    }
