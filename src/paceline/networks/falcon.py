"""Falcon: several tokens per pass, semi-autoregressively (Gao et al. 2024, arXiv:2412.12639).

As in EAGLE, a decoder layer foretells hidden states, but `width` of them at once: each row of a
block foretells the one `width` places on, and the rows of a block see one another both ways (the
relaxed causal mask, here an attention of its own among the slots, before the causal layer). The
first block has but one row to start from, the context's last, which a matrix spreads over the
slots. The published network reads its input through an LSTM over the text; here a matrix does, as
in EAGLE, since a recurrence would be one more state to keep for every sequence. Training is by
coupled sequential glancing distillation (`training.glancing`), as in the paper.
"""

from __future__ import annotations

from typing import Any, ClassVar

from paceline.networks.base import Geometry, Network, Shapes
from paceline.networks.blocks import (
    Attend,
    among_slots,
    attention,
    attention_shapes,
    decoder_layer,
    last_hidden,
    layer_shapes,
)
from paceline.networks.ops import Ops, Rows


class Falcon(Network):
    """Drafts `width` tokens per pass of its layer; its state is as many hidden states."""

    name: ClassVar[str] = "falcon"
    layers: ClassVar[int] = 1

    def __init__(
        self,
        geometry: Geometry,
        *,
        steps: int = 3,
        width: int = 2,
        ffn_size: int = 0,
        glancing: bool = True,
    ) -> None:
        """Size the network.

        Args:
            geometry: of the target.
            steps: most passes of one draft.
            width: tokens per pass.
            ffn_size: of the layer; 0 takes the target's own.
            glancing: whether some wrong states are put right in training.
        """
        super().__init__(geometry, steps=steps, width=width)
        self.ffn_size = ffn_size or geometry.ffn_size
        self.glances = glancing

    def settings(self) -> dict[str, Any]:
        """All sizes, and how it is trained."""
        sizes = {"steps": self.steps, "width": self.width, "ffn_size": self.ffn_size}
        return {**sizes, "glancing": self.glances}

    def shapes(self) -> Shapes:
        """Fusion, attention inside a block, the layer, the first block."""
        width = self.geometry.width
        inside: Shapes = {}
        if self.steps > 1:
            inside = {"block_norm": (width,), **attention_shapes("block", self.geometry, width)}
        return {
            "hidden_scale": (width,),
            "embed_norm": (width,),
            "fuse": (width, 2 * width),
            **inside,
            "layer_norm": (width,),
            **layer_shapes("layer", self.geometry, width, self.ffn_size),
            "spread.residual": (self.width * width, width),
            "norm": (width,),
        }

    def start(self, ops: Ops, features: Rows, tokens: Rows) -> Rows:
        """The layer over the context; its last row spread over the first block."""
        x = self._fuse(ops, last_hidden(ops, self.geometry, features), tokens)
        x = ops.last(self._layer(ops, x, ops.attend_context))
        x = x + ops.slots(ops.linear(x, "spread.residual"), self.width)
        return ops.norm(x, "norm")

    def logits(self, ops: Ops, state: Rows, step: int) -> Rows:
        """By the target's LM head."""
        return ops.head(state)

    def advance(self, ops: Ops, state: Rows, tokens: Rows, step: int) -> Rows:
        """The layer over the tokens of a block, which see one another first."""
        x = self._fuse(ops, state, tokens)
        read = ops.norm(x, "block_norm")
        x = attention(ops, "block", self.geometry, x, read, among_slots(ops))
        return ops.norm(self._layer(ops, x, ops.attend_draft), "norm")

    def features_of(self, ops: Ops, state: Rows) -> Rows:
        """The state."""
        return state

    def _fuse(self, ops: Ops, hidden: Rows, tokens: Rows) -> Rows:
        embedded = ops.norm(ops.embed(tokens), "embed_norm")
        return ops.linear(ops.concat([embedded, hidden * ops.weight("hidden_scale")]), "fuse")

    def _layer(self, ops: Ops, x: Rows, attend: Attend) -> Rows:
        read = ops.norm(x, "layer_norm")
        return decoder_layer(ops, "layer", self.geometry, self.ffn_size, x, read, attend)
