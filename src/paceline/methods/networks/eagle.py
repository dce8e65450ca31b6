"""EAGLE-1 and EAGLE-2 network: autoregression on hidden states (Li et al. 2024).

One decoder layer predicts the next hidden state from the last one and the next token's embedding.
Trained by regression beside the token loss. Unlike in the paper, inputs are scaled and normed: at
small targets, few axes of a hidden state outweigh all others.
"""

from __future__ import annotations

from typing import ClassVar

from paceline.models.config import ModelConfig
from paceline.models.ops import Ops, Rows, Sight
from paceline.networks.base import Network, Shapes
from paceline.networks.blocks import decoder_layer, last_hidden, layer_names, layer_shapes


class Eagle(Network):
    """Draft one token per pass of its layer; the state is a predicted hidden state."""

    name: ClassVar[str] = "eagle"
    layers: ClassVar[int] = 1

    def __init__(self, config: ModelConfig, *, steps: int = 5, ffn_size: int = 0) -> None:
        super().__init__(config, steps=steps)
        self.ffn_size = ffn_size or config.ffn_size

    def shapes(self) -> Shapes:
        width = self.config.hidden_size
        return {
            "hidden_scale": (width,),
            "embed_norm": (width,),
            "fuse": (width, 2 * width),
            "layer_norm": (width,),
            **layer_shapes("layer", self.config, width, self.ffn_size),
            "norm": (width,),
        }

    def start(self, ops: Ops, features: Rows, tokens: Rows) -> Rows:
        hidden = last_hidden(ops, self.config, features)
        return self._layer(ops, hidden, tokens, "last")

    def logits(self, ops: Ops, state: Rows, step: int) -> Rows:
        return ops.head(state)

    def advance(self, ops: Ops, state: Rows, tokens: Rows, step: int) -> Rows:
        return self._layer(ops, state, tokens, "draft")

    def features_of(self, ops: Ops, state: Rows) -> Rows:
        return state

    def _layer(self, ops: Ops, hidden: Rows, tokens: Rows, sees: Sight) -> Rows:
        embedded = ops.norm(ops.embed(tokens), "embed_norm")
        x = ops.linear(ops.concat([embedded, hidden * ops.weight("hidden_scale")]), ["fuse"])
        x = decoder_layer(ops, self.config, layer_names("layer", "layer_norm"), x, sees)
        return ops.norm(x, "norm")  # as the target's own hidden states come out of a norm
