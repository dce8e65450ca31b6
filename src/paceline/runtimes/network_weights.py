"""A drafter network's weights as CPU runtimes take them."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from paceline.errors import InvalidOption
from paceline.networks.base import Network
from paceline.networks.weights import Trained
from paceline.runtimes.quantise import pack

Tensors = dict[str, np.ndarray]


def packed(trained: Trained, target: Mapping[str, np.ndarray], precision: str) -> Tensors:
    """The network's weights and the target's share in them, compressed.

    Args:
        trained: network and parameters.
        target: the target's prepared weights.
        precision: of the network's matrices, "fp32"; any other stands for "int8".

    Returns:
        By the network's own names: parameters of one axis and "slots" as they are, of matrices
        `NAME.weight` and, but for float32, `NAME.scale`; so "embed" and "head", too, the target's
        embedding and the rows of its LM head that may be drafted.

    Raises:
        InvalidOption: the target lacks layers that the network borrows.
    """
    out: Tensors = {}
    for name, array in trained.parameters.items():
        if name == "slots" or array.ndim == 1:
            out[name] = array
            continue
        for part, each in pack(array, "fp32" if precision == "fp32" else "int8").items():
            out[f"{name}.{part}"] = each
    head = "embed" if "lm_head.weight" not in target else "lm_head"
    out |= _borrowed(trained.network, target)
    for part in ("weight", "scale"):
        if f"embed.{part}" in target:
            out[f"embed.{part}"] = target[f"embed.{part}"]
            out[f"head.{part}"] = np.ascontiguousarray(target[f"{head}.{part}"][trained.draft_ids])
    return out


def _borrowed(network: Network, target: Mapping[str, np.ndarray]) -> Tensors:
    """What a network borrows of the target, all parts of compressed matrices, by its own names.

    Raises:
        InvalidOption: the target lacks something of it.
    """
    out: Tensors = {}
    for mine, theirs in network.borrowed().items():
        parts = {
            mine + name.removeprefix(theirs): array
            for name, array in target.items()
            if name == theirs or name.startswith(f"{theirs}.")
        }
        if not parts:
            raise InvalidOption(
                f"network '{network.name}' runs {network.exit} layers of its target, which has "
                "fewer: use weights that were trained for this model"
            )
        out |= parts
    return out
