"""The head for more tokens that a model brings along: one layer of its own kind behind its last.

After the root, the layer's own output, normed, takes the place of the model's (DeepSeek-AI 2024,
section 2.2, with one layer for all steps as in Qwen 3.5). Embedding and LM head are the model's.
"""

from __future__ import annotations

from functools import partial
from typing import ClassVar

import numpy as np

from paceline.models.config import ModelConfig
from paceline.models.families import family_of
from paceline.models.ops import Ops, Rows, Sight
from paceline.models.weights import Weights
from paceline.networks.base import Network, Shapes
from paceline.networks.blocks import last_hidden
from paceline.networks.weights import LazyTensors, Trained

_STEPS = 4


class Mtp(Network):
    """Draft one token per pass of the layer; names are those of the model's tensors."""

    name: ClassVar[str] = "mtp"
    layers: ClassVar[int] = 1

    def __init__(self, config: ModelConfig, *, steps: int = _STEPS) -> None:
        super().__init__(config, steps=steps)

    def shapes(self) -> Shapes:
        config, width, family = self.config, self.config.hidden_size, family_of(self.config)
        norms = ("mtp_embed_norm", "mtp_hidden_norm", "mtp_norm", "attention_norm")
        parts: Shapes = {"mtp_fc": (width, 2 * width), **dict.fromkeys(norms, (width,))}
        if config.latents is not None:
            known = config.latents.shapes(config.heads, width)
            parts |= {part: shape for part, shape in known.items() if 0 not in shape}
        else:
            wide, narrow = config.heads * config.head_dim, config.kv_heads * config.head_dim
            queries = ("q", "q_gate")[: 1 + family.gated_queries]
            parts |= dict.fromkeys(queries, (wide, width)) | dict.fromkeys("kv", (narrow, width))
            parts["o"] = (width, wide)
            normed = ("q_norm", "k_norm") if config.qk_norm else ()
            parts |= dict.fromkeys(normed, (config.head_dim,))
        attention = {self._name(part): shape for part, shape in parts.items()}
        behind = 1 if config.feed_forward_layers else 0  # where a layer is either half
        block = {self._name(part, behind): each for part, each in self._block().items()}
        return attention | block

    def _block(self) -> Shapes:
        # Feed-forward ones; that which is shared may have another size.
        config, width, experts = self.config, self.config.hidden_size, self.config.experts
        parts: Shapes = {"ffn_norm": (width,)}
        names, blocks, read = ["gate", "up", "down"], [""], width
        if experts is not None:
            names, read = names[not experts.gated :], experts.latent or width
            blocks = ["shared_", *(f"experts.{each}." for each in range(experts.count))]
            parts |= {"router": (experts.count, width)}
            parts |= {"router_offset": (experts.count,)} if experts.sigmoid else {}
            parts |= {"shared_by": (1, width)} if experts.shared else {}
            if latent := experts.latent:
                parts |= {"experts_in": (latent, width), "experts_out": (width, latent)}
        for block in blocks:
            rows = width if block == "shared_" else read
            for name in names:
                size = (rows, config.ffn_size) if name == "down" else (config.ffn_size, rows)
                parts[f"{block}{name}"] = size
        return parts

    def start(self, ops: Ops, features: Rows, tokens: Rows) -> Rows:
        return self._layer(ops, last_hidden(ops, self.config, features), tokens, "last")

    def logits(self, ops: Ops, state: Rows, step: int) -> Rows:
        return ops.head(state)

    def advance(self, ops: Ops, state: Rows, tokens: Rows, step: int) -> Rows:
        return self._layer(ops, state, tokens, "draft")

    def _name(self, part: str, behind: int = 0) -> str:
        return f"layers.{self.config.layers + behind}.{part}"

    def _layer(self, ops: Ops, state: Rows, tokens: Rows, sees: Sight) -> Rows:
        embedded = ops.norm(ops.embed(tokens), self._name("mtp_embed_norm"))
        read = ops.concat([embedded, ops.norm(state, self._name("mtp_hidden_norm"))])
        layer = family_of(self.config).mtp
        assert layer is not None
        x = layer(
            ops, self.config, self.config.layers, ops.linear(read, [self._name("mtp_fc")]), sees
        )
        return ops.norm(x, self._name("mtp_norm"))


def has_own_head(config: ModelConfig, weights: Weights) -> bool:
    """Return whether a model's files hold such a head, or the first parts of one."""
    first = [f"layers.{config.layers}.mtp_fc"]
    if config.feed_forward_layers:  # of which either layer may be of any kind
        first += [f"layers.{config.layers}.o", f"layers.{config.layers + 1}.shared_up"]
    return family_of(config).mtp is not None and all(name in weights for name in first)


def lacks_own_head(config: ModelConfig, weights: Weights) -> bool:
    """Return whether such models have a head, and these files do not."""
    return family_of(config).mtp is not None and not has_own_head(config, weights)


def own_head(config: ModelConfig, weights: Weights, fingerprint: str) -> Trained | None:
    """Return the head that a model's files hold; None if they hold none.

    Raises ModelError if a part of it is missing.
    """
    if not has_own_head(config, weights):
        return None
    network = Mtp(config)
    names = network.shapes()
    for name in names:
        if name not in weights:
            weights[name]  # raises, and names it
    ids = np.arange(config.vocab_size, dtype=np.int64)
    read = {name: partial(weights.__getitem__, name) for name in names}
    return Trained(network, LazyTensors(read), ids, {"model": fingerprint})
