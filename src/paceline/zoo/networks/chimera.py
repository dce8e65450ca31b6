"""Chimera drafter: a trigram encoder and one decoder layer (Zeng et al. 2024).

The layer reads the target's hidden states in the context and its own output in the draft. The
paper has separate rows for hidden states and trigrams; here each row is the sum of both.
"""

from __future__ import annotations

from typing import Any, ClassVar

from paceline.drafters.network.drafter import TrainedDrafter
from paceline.networks.base import Geometry, Network, Shapes
from paceline.networks.blocks import decoder_layer, last_hidden, layer_shapes
from paceline.networks.ops import Ops, Rows, Sight


class Chimera(Network):
    """Draft one token per step; the state is a predicted hidden state and two embeddings."""

    name: ClassVar[str] = "chimera"
    layers: ClassVar[int] = 1
    window: ClassVar[int] = 3

    def __init__(self, geometry: Geometry, *, steps: int = 5, ffn_size: int = 0) -> None:
        super().__init__(geometry, steps=steps)
        self.ffn_size = ffn_size or geometry.ffn_size

    def settings(self) -> dict[str, Any]:
        return {"steps": self.steps, "ffn_size": self.ffn_size}

    def shapes(self) -> Shapes:
        width = self.geometry.width
        return {
            "hidden_scale": (width,),
            "trigram.norm": (3 * width,),
            "trigram.residual": (3 * width, 3 * width),
            "trigram.out": (width, 3 * width),
            "layer_norm": (width,),
            **layer_shapes("layer", self.geometry, width, self.ffn_size),
            "norm": (width,),
        }

    def start(self, ops: Ops, features: Rows, tokens: Rows) -> Rows:
        hidden = last_hidden(ops, self.geometry, features)
        embeddings = ops.embed_windows(tokens)
        return self._layer(ops, hidden, embeddings, "last")

    def logits(self, ops: Ops, state: Rows, step: int) -> Rows:
        return ops.head(self.features_of(ops, state))

    def advance(self, ops: Ops, state: Rows, tokens: Rows, step: int) -> Rows:
        width = self.geometry.width
        hidden, before = ops.split(state, (width, 2 * width))
        embeddings = ops.concat([before, ops.embed(tokens)])
        return self._layer(ops, hidden, embeddings, "draft")

    def features_of(self, ops: Ops, state: Rows) -> Rows:
        width = self.geometry.width
        return ops.split(state, (width, 2 * width))[0]

    def _layer(self, ops: Ops, hidden: Rows, embeddings: Rows, sees: Sight) -> Rows:
        width = self.geometry.width
        grams = ops.norm(embeddings, "trigram.norm")
        grams = grams + ops.silu(ops.linear(grams, "trigram.residual"))
        x = ops.linear(grams, "trigram.out", plus=hidden * ops.weight("hidden_scale"))
        x = decoder_layer(ops, "layer", x, sees, norm="layer_norm")
        newest = ops.split(embeddings, (width, 2 * width))[1]
        if sees == "last":
            newest = ops.last(newest)
        return ops.concat([ops.norm(x, "norm"), newest])


class ChimeraDrafter(TrainedDrafter):
    """Chimera's trigrams and layer."""

    name: ClassVar[str] = "chimera"
