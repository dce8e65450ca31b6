"""EAGLE-1 and EAGLE-2: drafting hidden states instead of tokens (Li et al. 2024, twice: the trees
differ, the network does not).

One decoder layer reads the target's last hidden state beside the embedding of the token that
followed, and foretells the next hidden state. The target's LM head turns that into a token, and
the state itself stands in for the hidden state that the next step cannot know. Trained by a
regression on hidden states beside the loss on tokens. Unlike the published layer, what it reads is
scaled and normed: at small targets, few axes of a hidden state outweigh all others.
"""

from __future__ import annotations

from typing import Any, ClassVar

from paceline.networks.base import Geometry, Network, Shapes
from paceline.networks.blocks import Attend, decoder_layer, last_hidden, layer_shapes
from paceline.networks.ops import Ops, Rows


class Eagle(Network):
    """Drafts one token per pass of its layer; its state is a hidden state of the target."""

    name: ClassVar[str] = "eagle"
    layers: ClassVar[int] = 1

    def __init__(self, geometry: Geometry, *, steps: int = 5, ffn_size: int = 0) -> None:
        """Size the network; `ffn_size` 0 takes the target's own."""
        super().__init__(geometry, steps=steps)
        self.ffn_size = ffn_size or geometry.ffn_size

    def settings(self) -> dict[str, Any]:
        """All sizes."""
        return {"steps": self.steps, "ffn_size": self.ffn_size}

    def shapes(self) -> Shapes:
        """Fusion, and the layer."""
        width = self.geometry.width
        return {
            "hidden_scale": (width,),
            "embed_norm": (width,),
            "fuse": (width, 2 * width),
            "layer_norm": (width,),
            **layer_shapes("layer", self.geometry, width, self.ffn_size),
            "norm": (width,),
        }

    def start(self, ops: Ops, features: Rows, tokens: Rows) -> Rows:
        """The layer over the context."""
        hidden = last_hidden(ops, self.geometry, features)
        return ops.last(self._layer(ops, hidden, tokens, ops.attend_context))

    def logits(self, ops: Ops, state: Rows, step: int) -> Rows:
        """By the target's LM head."""
        return ops.head(state)

    def advance(self, ops: Ops, state: Rows, tokens: Rows, step: int) -> Rows:
        """The layer over one more token, the foretold hidden state in place of the true one."""
        return self._layer(ops, state, tokens, ops.attend_draft)

    def features_of(self, ops: Ops, state: Rows) -> Rows:
        """The state."""
        return state

    def _layer(self, ops: Ops, hidden: Rows, tokens: Rows, attend: Attend) -> Rows:
        embedded = ops.norm(ops.embed(tokens), "embed_norm")
        x = ops.linear(ops.concat([embedded, hidden * ops.weight("hidden_scale")]), "fuse")
        read = ops.norm(x, "layer_norm")
        x = decoder_layer(ops, "layer", self.geometry, self.ffn_size, x, read, attend)
        return ops.norm(x, "norm")  # as the target's own hidden states come out of a norm
