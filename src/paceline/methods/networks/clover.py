"""Clover drafter: sequential heads with an attention decoder (Xiao et al. 2024).

An augmenting block (one decoder layer) reads the target's hidden states. At each depth the last
drafted token queries the earlier states and the context; the result is the next state (regressive
connection). All depths share weights. The paper does not publish its sizes.
"""

from __future__ import annotations

from typing import ClassVar

from paceline.drafters.network.drafter import TrainedDrafter
from paceline.models.config import ModelConfig
from paceline.models.families.base import add_feed_forward, heads_of
from paceline.models.ops import Ops, Rows
from paceline.networks.base import Network, Shapes
from paceline.networks.blocks import (
    decoder_layer,
    feed_forward_shapes,
    last_hidden,
    layer_names,
    layer_shapes,
)


class Clover(Network):
    """Draft one token per step; `ffn_size`, of both blocks, 0 takes the target's own."""

    name: ClassVar[str] = "clover"
    layers: ClassVar[int] = 1

    def __init__(self, config: ModelConfig, *, steps: int = 4, ffn_size: int = 0) -> None:
        super().__init__(config, steps=steps)
        self.ffn_size = ffn_size or config.ffn_size

    def shapes(self) -> Shapes:
        shape = self.config
        width = shape.hidden_size
        wide, narrow = shape.heads * shape.head_dim, shape.kv_heads * shape.head_dim
        return {
            "hidden_scale": (width,),
            "augment.norm": (width,),
            **layer_shapes("augment", shape, width, self.ffn_size),
            "embed_norm": (width,),
            "memory_norm": (width,),
            "decoder.q": (wide, width),
            "decoder.kv": (2 * narrow, width),
            "decoder.o.residual": (width, wide),
            "decoder.token.residual": (width, width),
            **feed_forward_shapes("decoder", shape, self.ffn_size),
            "norm": (width,),
        }

    def start(self, ops: Ops, features: Rows, tokens: Rows) -> Rows:
        hidden = last_hidden(ops, self.config, features) * ops.weight("hidden_scale")
        x = decoder_layer(ops, self.config, layer_names("augment", "augment.norm"), hidden, "last")
        return self._decode(ops, x, ops.last(ops.embed(tokens)))

    def advance(self, ops: Ops, state: Rows, tokens: Rows, step: int) -> Rows:
        return self._decode(ops, state, ops.embed(tokens))

    def _decode(self, ops: Ops, state: Rows, embeddings: Rows) -> Rows:
        asking = ops.norm(embeddings, "embed_norm")
        memory = ops.linear(state, ["decoder.kv"], norm="memory_norm")
        # The augmenting block's cache holds the context; states join it as draft rows.
        qkv = ops.concat([ops.linear(asking, ["decoder.q"]), memory])
        answer = ops.attend(0, qkv, heads_of(self.config, 0), "draft")
        x = ops.linear(answer, ["decoder.o.residual"], residual=state)
        x = ops.linear(asking, ["decoder.token.residual"], residual=x)
        return add_feed_forward(ops, layer_names("decoder"), x)


class CloverDrafter(TrainedDrafter):
    name: ClassVar[str] = "clover"
    paper = "after Clover, Xiao et al. 2024, arXiv:2405.00263"
