"""Kangaroo drafter: early exit of the target and an adapter (Liu et al. 2024, arXiv:2404.18911).

The adapter is one attention layer with a residual. The paper's second early exit is `stop` of the
drafter. The shallow layers have a KV cache of their own, so that verification recomputes them and
stays bit-exact.
"""

from __future__ import annotations

from typing import ClassVar

from paceline.core.options import require
from paceline.core.types import Needs
from paceline.drafters.network.drafter import WEIGHTS, TrainedDrafter
from paceline.models.config import ModelConfig
from paceline.models.families.base import LayerNames, add_attention
from paceline.models.ops import Ops, Rows, Sight
from paceline.networks.base import Network, Shapes
from paceline.networks.blocks import attention_shapes, before, layer_names, stack


class Kangaroo(Network):
    """Draft one token per pass of the target's first `exit` layers and the adapter."""

    name: ClassVar[str] = "kangaroo"
    reads_features: ClassVar[bool] = False

    def __init__(self, config: ModelConfig, *, steps: int = 6, exit: int = 2) -> None:
        super().__init__(config, steps=steps)
        require(exit >= 1, "exit", exit, "1 or more")
        self.exit = exit
        self.layers = exit + 1  # type: ignore[misc]

    def shapes(self) -> Shapes:
        width = self.config.hidden_size
        return {
            "adapter.norm": (width,),
            **attention_shapes("adapter", self.config, width),
            "norm": (width,),
        }

    def start(self, ops: Ops, features: Rows, tokens: Rows) -> Rows:
        return self._layers(ops, tokens, "last")

    def advance(self, ops: Ops, state: Rows, tokens: Rows, step: int) -> Rows:
        return self._layers(ops, tokens, "draft")

    def _layers(self, ops: Ops, tokens: Rows, sees: Sight) -> Rows:
        names = [LayerNames.of(layer) for layer in self.runs]
        x = stack(ops, self.config, names, ops.embed(tokens), before(sees))
        return add_attention(
            ops, self.config, layer_names("adapter", "adapter.norm"), x, sees, self.exit
        )


class KangarooDrafter(TrainedDrafter):
    name: ClassVar[str] = "kangaroo"
    paper = "after Kangaroo, Liu et al. 2024, arXiv:2404.18911"
    needs: Needs = Needs()
    requires = WEIGHTS
    stop: ClassVar[float] = 0.6  # the paper's
