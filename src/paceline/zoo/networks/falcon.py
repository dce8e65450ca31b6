"""Falcon drafter: semi-autoregressive, `width` tokens per pass (Gao et al. 2024, arXiv:2412.12639).

Each row of a block predicts the hidden state `width` places on; rows of a block see one another
both ways (relaxed causal mask). A matrix replaces the paper's LSTM, which would add a recurrent
state per sequence. Trained by glancing distillation (`glancing.py`).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar

from paceline.drafters.network.drafter import TrainedDrafter
from paceline.networks.base import Geometry, Network, Shapes
from paceline.networks.blocks import (
    attention,
    attention_shapes,
    decoder_layer,
    last_hidden,
    layer_shapes,
)
from paceline.networks.ops import Ops, Rows


class Falcon(Network):
    """Draft `width` tokens per pass of its layer; the state is as many predicted hidden states."""

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
        super().__init__(geometry, steps=steps, width=width)
        self.ffn_size = ffn_size or geometry.ffn_size
        self.glancing = glancing

    def settings(self) -> dict[str, Any]:
        sizes = {"steps": self.steps, "width": self.width, "ffn_size": self.ffn_size}
        return {**sizes, "glancing": self.glancing}

    def shapes(self) -> Shapes:
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
        # A matrix spreads the context's last row over the slots of the first block.
        x = self._fuse(ops, last_hidden(ops, self.geometry, features), tokens)
        x = decoder_layer(ops, "layer", x, "last", norm="layer_norm")
        x = x + ops.slots(ops.linear(x, "spread.residual"), self.width)
        return ops.norm(x, "norm")

    def logits(self, ops: Ops, state: Rows, step: int) -> Rows:
        return ops.head(state)

    def advance(self, ops: Ops, state: Rows, tokens: Rows, step: int) -> Rows:
        x = self._fuse(ops, state, tokens)
        x = attention(ops, "block", x, "slots", norm="block_norm")
        return ops.norm(decoder_layer(ops, "layer", x, "draft", norm="layer_norm"), "norm")

    def features_of(self, ops: Ops, state: Rows) -> Rows:
        return state

    def reveal(self, batch: Any, places: Any, progress: float, seed: Sequence[int]) -> Any:
        from paceline.zoo.networks.glancing import glance  # imports torch

        return glance(self, batch, places, progress, seed) if self.glancing else None

    def _fuse(self, ops: Ops, hidden: Rows, tokens: Rows) -> Rows:
        embedded = ops.norm(ops.embed(tokens), "embed_norm")
        return ops.linear(ops.concat([embedded, hidden * ops.weight("hidden_scale")]), "fuse")


class FalconDrafter(TrainedDrafter):
    """Falcon: a block of tokens per step."""

    name: ClassVar[str] = "falcon"
