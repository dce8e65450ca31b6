"""EAGLE-3 drafter: one decoder layer on fused features (Li et al. 2025, section 3).

After the root, the layer's own output replaces the features. Trained on its own drafts
(training-time test), by `advance` after every position.
"""

from __future__ import annotations

from typing import ClassVar

from paceline.models.config import ModelConfig
from paceline.models.ops import Ops, Rows, Sight
from paceline.networks.base import Network, Shapes
from paceline.networks.blocks import decoder_layer, layer_names, layer_shapes


class Eagle3(Network):
    """Draft one token per pass of its layer; `ffn_size` 0 takes the target's own."""

    name: ClassVar[str] = "eagle3"
    layers: ClassVar[int] = 1

    def __init__(self, config: ModelConfig, *, steps: int = 5, ffn_size: int = 0) -> None:
        super().__init__(config, steps=steps)
        self.ffn_size = ffn_size or config.ffn_size

    def shapes(self) -> Shapes:
        width = self.config.hidden_size
        return {
            "scale": (3 * width,),
            "fuse": (width, 3 * width),
            "embed_norm": (width,),
            "hidden_norm": (width,),
            **layer_shapes("layer", self.config, 2 * width, self.ffn_size),
            "norm": (width,),
        }

    def start(self, ops: Ops, features: Rows, tokens: Rows) -> Rows:
        width = self.config.hidden_size
        inner = ops.split(features, (3 * width, width))[0]
        fused = ops.linear(inner * ops.weight("scale"), ["fuse"])
        return self._layer(ops, fused, tokens, "last")

    def advance(self, ops: Ops, state: Rows, tokens: Rows, step: int) -> Rows:
        return self._layer(ops, state, tokens, "draft")

    def _layer(self, ops: Ops, x: Rows, tokens: Rows, sees: Sight) -> Rows:
        embedded = ops.norm(ops.embed(tokens), "embed_norm")
        read = ops.concat([embedded, ops.norm(x, "hidden_norm")])
        return self._decode(ops, x, read, sees)

    def _decode(self, ops: Ops, x: Rows, read: Rows, sees: Sight) -> Rows:
        return decoder_layer(ops, self.config, layer_names("layer"), x, sees, read=read)
