"""Chimera: the last three tokens beside the whole context (Zeng et al. 2024).

A trigram encoder says at once what the newest tokens tell together; one decoder layer adds what the
text before them tells, from the target's hidden states, which are the true ones in the context and
the layer's own output in the draft. The output is trained to equal the true hidden states, and the
target's LM head reads it. The published network has rows of hidden states and rows of trigrams;
here each row adds both, one for the token and one for what came before it, so that a draft starts
behind the last context row without a row more.
"""

from __future__ import annotations

from typing import Any, ClassVar

from paceline.networks.base import Geometry, Network, Shapes
from paceline.networks.blocks import Attend, decoder_layer, last_hidden, layer_shapes
from paceline.networks.ops import Ops, Rows


class Chimera(Network):
    """Drafts one token per step. Its state is a foretold hidden state and two embeddings."""

    name: ClassVar[str] = "chimera"
    layers: ClassVar[int] = 1
    window: ClassVar[int] = 3

    def __init__(self, geometry: Geometry, *, steps: int = 5, ffn_size: int = 0) -> None:
        """Size the network; `ffn_size` 0 takes the target's own."""
        super().__init__(geometry, steps=steps)
        self.ffn_size = ffn_size or geometry.ffn_size

    def settings(self) -> dict[str, Any]:
        """All sizes."""
        return {"steps": self.steps, "ffn_size": self.ffn_size}

    def shapes(self) -> Shapes:
        """The trigram encoder and the layer."""
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
        """The layer over the context's true hidden states."""
        hidden = last_hidden(ops, self.geometry, features)
        embeddings = ops.embed_windows(tokens)
        return ops.last(self._layer(ops, hidden, embeddings, ops.attend_context))

    def logits(self, ops: Ops, state: Rows, step: int) -> Rows:
        """By the target's LM head."""
        return ops.head(self.features_of(ops, state))

    def advance(self, ops: Ops, state: Rows, tokens: Rows, step: int) -> Rows:
        """The layer over one more token, its own output in place of the hidden state."""
        width = self.geometry.width
        hidden, before = ops.split(state, (width, 2 * width))
        embeddings = ops.concat([before, ops.embed(tokens)])
        return self._layer(ops, hidden, embeddings, ops.attend_draft)

    def features_of(self, ops: Ops, state: Rows) -> Rows:
        """The first part of the state."""
        width = self.geometry.width
        return ops.split(state, (width, 2 * width))[0]

    def _layer(self, ops: Ops, hidden: Rows, embeddings: Rows, attend: Attend) -> Rows:
        width = self.geometry.width
        grams = ops.norm(embeddings, "trigram.norm")
        grams = grams + ops.silu(ops.linear(grams, "trigram.residual"))
        x = hidden * ops.weight("hidden_scale") + ops.linear(grams, "trigram.out")
        read = ops.norm(x, "layer_norm")
        x = decoder_layer(ops, "layer", self.geometry, self.ffn_size, x, read, attend)
        return ops.concat([ops.norm(x, "norm"), ops.split(embeddings, (width, 2 * width))[1]])
