"""Stand-alone draft model: a small Llama (FastDraft, Zafrir et al. 2024, arXiv:2411.11055).

It reads tokens alone and shares the target's frozen embedding and LM head. Training: first
cross-entropy on text, then a divergence on text of the target.
"""

from __future__ import annotations

from typing import ClassVar

from paceline.core.options import require
from paceline.core.types import Needs
from paceline.drafters.network.drafter import WEIGHTS, TrainedDrafter
from paceline.models.config import ModelConfig
from paceline.models.ops import Ops, Rows, Sight
from paceline.networks.base import Network, Shapes
from paceline.networks.blocks import stack, stack_names, stack_shapes


class DraftLM(Network):
    """Draft one token per pass of `layers` decoder layers; `ffn_size` 0 takes the target's own."""

    name: ClassVar[str] = "draft-lm"
    reads_features: ClassVar[bool] = False

    def __init__(
        self, config: ModelConfig, *, steps: int = 5, layers: int = 2, ffn_size: int = 0
    ) -> None:
        super().__init__(config, steps=steps)
        require(layers >= 1, "layers", layers, "1 or more")
        self.layers = layers  # type: ignore[misc]
        self.ffn_size = ffn_size or config.ffn_size
        self._names = stack_names("layer", layers)

    def shapes(self) -> Shapes:
        layers = stack_shapes("layer", self.config, self.layers, self.ffn_size)
        return {**layers, "norm": (self.config.hidden_size,)}

    def start(self, ops: Ops, features: Rows, tokens: Rows) -> Rows:
        return self._layers(ops, tokens, "last")

    def advance(self, ops: Ops, state: Rows, tokens: Rows, step: int) -> Rows:
        return self._layers(ops, tokens, "draft")

    def _layers(self, ops: Ops, tokens: Rows, sees: Sight) -> Rows:
        return stack(ops, self.config, self._names, ops.embed(tokens), sees)


class DraftLMDrafter(TrainedDrafter):
    name: ClassVar[str] = "draft-lm"
    paper = "after FastDraft, Zafrir et al. 2024, arXiv:2411.11055"
    needs: Needs = Needs()
    requires = WEIGHTS
