"""SpecFormer drafter: parallel slots from hooks of several layers (Shi et al. 2025).

Hooks are normed, projected down and fused. A decoder layer reads the context, a matrix spreads its
last row over the slots, and a second layer is bidirectional among them. Like Medusa, it reads no
tokens, not even the root.
"""

from __future__ import annotations

from typing import ClassVar

from paceline.drafters.network.drafter import TrainedDrafter
from paceline.models.config import ModelConfig
from paceline.models.ops import Ops, Rows
from paceline.networks.base import Network, Shapes
from paceline.networks.blocks import decoder_layer, layer_names, layer_shapes

_HOOKS = 4


class SpecFormer(Network):
    """Draft `width` tokens in one pass; `hook_width` 0 takes half the target's width."""

    name: ClassVar[str] = "specformer"
    layers: ClassVar[int] = 1

    def __init__(
        self, config: ModelConfig, *, width: int = 8, hook_width: int = 0, ffn_size: int = 0
    ) -> None:
        super().__init__(config, steps=1, width=width)
        self.hook_width = hook_width or config.hidden_size // 2
        self.ffn_size = ffn_size or config.ffn_size

    def shapes(self) -> Shapes:
        width = self.config.hidden_size
        hooks: Shapes = {}
        for index in range(_HOOKS):
            hooks[f"hook.{index}.norm"] = (width,)
            hooks[f"hook.{index}.down"] = (self.hook_width, width)
        return {
            "scale": (4 * width,),
            **hooks,
            "fuse": (width, _HOOKS * self.hook_width),
            "context_norm": (width,),
            **layer_shapes("context", self.config, width, self.ffn_size),
            "spread": (self.width * width, width),
            "slots_norm": (width,),
            **layer_shapes("block", self.config, width, self.ffn_size),
            "norm": (width,),
        }

    def start(self, ops: Ops, features: Rows, tokens: Rows) -> Rows:
        hooks = ops.split(features * ops.weight("scale"), (self.config.hidden_size,) * _HOOKS)
        lowered = [
            ops.linear(hook, [f"hook.{index}.down"], norm=f"hook.{index}.norm")
            for index, hook in enumerate(hooks)
        ]
        x = ops.linear(ops.concat(lowered), ["fuse"])
        x = decoder_layer(ops, self.config, layer_names("context", "context_norm"), x, "last")
        x = ops.slots(ops.linear(x, ["spread"]), self.width)
        return decoder_layer(ops, self.config, layer_names("block", "slots_norm"), x, "slots")


class SpecFormerDrafter(TrainedDrafter):
    """SpecFormer's slots."""

    name: ClassVar[str] = "specformer"
    paper = "after SpecFormer, Shi et al. 2025, arXiv:2511.20340"
