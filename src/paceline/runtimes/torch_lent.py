"""Layers of a target in PyTorch that drafter networks run as their own."""

from __future__ import annotations

import torch
from torch import Tensor

from paceline.errors import InvalidOption
from paceline.models.llama import Llama
from paceline.networks.base import Network

_LAYER = {
    "attention_norm": ("input_layernorm",),
    "qkv": ("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj"),
    "o": ("self_attn.o_proj",),
    "ffn_norm": ("post_attention_layernorm",),
    "gate_up": ("mlp.gate_proj", "mlp.up_proj"),
    "down": ("mlp.down_proj",),
}
"""Modules of a layer by the names that `Network.borrowed` uses, what is fused side by side."""


def lent(network: Network, llama: Llama) -> dict[str, Tensor]:
    """What a network borrows of its target, by the network's own names.

    Raises:
        InvalidOption: the target has fewer layers.
    """
    out = {}
    for mine, theirs in network.borrowed().items():
        layer, part = theirs.removeprefix("layers.").split(".")
        if int(layer) >= len(llama.layers):
            raise InvalidOption(
                f"network '{network.name}' runs {len(network.runs)} layers of its target, which "
                "has fewer: use weights that were trained for this model"
            )
        names = [f"layers.{layer}.{name}.weight" for name in _LAYER[part]]
        out[mine] = torch.cat([llama.get_parameter(name) for name in names])
    return out
