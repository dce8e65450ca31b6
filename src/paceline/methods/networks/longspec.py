"""LongSpec drafter: attention over a window of constant size (Yang et al. 2025, arXiv:2502.17421).

An EAGLE-3 layer sees `reach` rows. All earlier text comes by cross-attention to the cache of the
target's last layer, without a copy, or without `cross` through the target's features alone.
Training has no such cache: it runs the target's layers on the high features. With `cross` it moves
texts, but for their first tokens, by random offsets (anchor-offset indices), so that the network
attends over distances that its texts do not have. Without it offsets would change little: rotary
positions are relative.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any, ClassVar

from paceline.core.options import require
from paceline.core.types import Needs
from paceline.drafters.network.drafter import TrainedDrafter
from paceline.models.config import ModelConfig
from paceline.models.families.base import LayerNames, add_attention, add_feed_forward, heads_of
from paceline.models.ops import KV, Ops, Rows, Sight
from paceline.networks.base import Shapes
from paceline.networks.blocks import layer_names, layers_above, stack
from paceline.networks.eagle3 import Eagle3


class LongSpec(Eagle3):
    """Draft one token per pass of its layer, over the last `reach` rows.

    `cross` attends to the target's KV cache of all rows, too; it needs the target's layer count.
    """

    name: ClassVar[str] = "longspec"

    def __init__(
        self,
        config: ModelConfig,
        *,
        steps: int = 5,
        ffn_size: int = 0,
        reach: int = 512,
        cross: bool = True,
        farthest: int = 16384,
    ) -> None:
        require(reach >= 1, "reach", reach, "1 or more")
        super().__init__(replace(config, windows=(reach,)), steps=steps, ffn_size=ffn_size)
        self.cross = self.reads_target = cross
        if cross:
            self.farthest = farthest
            self.above = layers_above(config, "cross")

    def settings(self) -> dict[str, Any]:
        told = super().settings()
        if not self.cross:
            del told["farthest"]
        return told

    def shapes(self) -> Shapes:
        shape, out = self.config, super().shapes()
        if self.reads_target:
            wide = shape.heads * shape.head_dim
            out |= {
                "cross.norm": (shape.hidden_size,),
                "cross.q": (wide, shape.hidden_size),
                "cross.o.residual": (shape.hidden_size, wide),
            }
        return out

    def target_weights(self) -> list[str]:
        # All of the layers below the last one, and what makes keys and values in that.
        found, parts = super().target_weights(), ("attention_norm", *"qkv")
        last = f"layers.{self.runs[-1]}." if found else ""
        return [each for each in found if not each.startswith(last) or each[len(last) :] in parts]

    def target_rows(self, ops: Ops, features: Rows) -> Rows:
        width = self.config.hidden_size
        *below, last = (LayerNames.of(layer) for layer in self.runs)
        high = ops.split(features, (2 * width, width, width))[1]
        x = stack(ops, self._whole, below, high, "context")
        return ops.linear(x, last.qkv, norm=last.norm)

    @property
    def _whole(self) -> ModelConfig:
        return replace(self.config, windows=())

    def _decode(self, ops: Ops, x: Rows, read: Rows, sees: Sight) -> Rows:
        if not self.reads_target:
            return super()._decode(ops, x, read, sees)
        x = add_attention(ops, self.config, layer_names("layer"), x, sees, read=read)
        asking = ops.linear(x, ["cross.q"], norm="cross.norm")
        mixed = ops.attend(KV(-1, target=True), asking, heads_of(self._whole, -1), sees)
        x = ops.linear(mixed, ["cross.o.residual"], residual=x)
        return add_feed_forward(ops, layer_names("layer"), x)


class LongSpecDrafter(TrainedDrafter):
    """A drafter whose cache does not grow."""

    name: ClassVar[str] = "longspec"
    paper = "after LongSpec, Yang et al. 2025, arXiv:2502.17421"
    needs: Needs = Needs(features=True)
