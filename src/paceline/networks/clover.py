"""Clover: heads joined by attention (Xiao et al. 2024).

An augmenting block, one decoder layer, reads the hidden states of the context. Then every depth is
an attention decoder: the token drafted last asks, and the states before it and the context answer.
The result is the state that the next depth starts from (the regressive connection). All depths
share the target's LM head and the decoder's weights. Sizes are ours; the paper's are not known.
"""

from __future__ import annotations

from typing import Any, ClassVar

from paceline.networks.base import Geometry, Network, Shapes
from paceline.networks.blocks import (
    decoder_layer,
    feed_forward,
    feed_forward_shapes,
    layer_shapes,
)
from paceline.networks.ops import Ops, Rows


class Clover(Network):
    """Drafts one token per step of its attention decoder."""

    name: ClassVar[str] = "clover"
    layers: ClassVar[int] = 1

    def __init__(self, geometry: Geometry, *, steps: int = 4, ffn_size: int = 0) -> None:
        """Size the network; `ffn_size`, of both parts, 0 takes the target's own."""
        super().__init__(geometry, steps=steps)
        self.ffn_size = ffn_size or geometry.ffn_size

    def settings(self) -> dict[str, Any]:
        """All sizes."""
        return {"steps": self.steps, "ffn_size": self.ffn_size}

    def shapes(self) -> Shapes:
        """Fusion, the augmenting block, the attention decoder."""
        shape = self.geometry
        width, wide, narrow = shape.width, *_head_widths(shape)
        return {
            "scale": (4 * width,),
            "fuse": (width, 4 * width),
            "fuse_norm": (width,),
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
        """The augmenting block over the context, then the decoder with the root."""
        fused = ops.linear(features * ops.weight("scale"), "fuse")
        read = ops.norm(fused, "fuse_norm")
        shape, size = self.geometry, self.ffn_size
        x = decoder_layer(ops, "augment", shape, size, fused, read, ops.attend_context)
        return self._decode(ops, ops.last(x), ops.last(ops.embed(tokens)))

    def logits(self, ops: Ops, state: Rows, step: int) -> Rows:
        """By the shared LM head, after a norm."""
        return ops.head(ops.norm(state, "norm"))

    def advance(self, ops: Ops, state: Rows, tokens: Rows, step: int) -> Rows:
        """The decoder with one more token."""
        return self._decode(ops, state, ops.embed(tokens))

    def _decode(self, ops: Ops, state: Rows, embeddings: Rows) -> Rows:
        asking = ops.norm(embeddings, "embed_norm")
        _, narrow = _head_widths(self.geometry)
        memory = ops.linear(ops.norm(state, "memory_norm"), "decoder.kv")
        keys, values = ops.split(memory, (narrow, narrow))
        # The augmenting block's cache holds the context; states join it as draft rows.
        answer = ops.attend_draft(0, ops.linear(asking, "decoder.q"), keys, values)
        x = state + ops.linear(answer, "decoder.o.residual")
        x = x + ops.linear(asking, "decoder.token.residual")
        return feed_forward(ops, "decoder", self.ffn_size, x)


def _head_widths(shape: Geometry) -> tuple[int, int]:
    """Of all query heads, and of all key and value heads."""
    return shape.heads * shape.head_dim, shape.kv_heads * shape.head_dim
