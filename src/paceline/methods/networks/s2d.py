"""Network of S2D (Kavehzadeh et al. 2024, arXiv:2407.01955): a draft model with an exit per layer.

Sorted fine-tuning: every exit, through one norm and the LM head, has the same weight in the loss.
`paceline export` makes a model of it, which drafter `s2d` takes as its draft model.
"""

from __future__ import annotations

from typing import Any, ClassVar

from paceline.methods.networks.draft_lm import DraftLM
from paceline.models.config import ModelConfig
from paceline.models.ops import Ops, Rows, Sight
from paceline.networks.blocks import before, decoder_layer, layer_names


class S2D(DraftLM):
    """Draft one token per pass; the state is the layers' outputs, `[rows, layers * width]`."""

    name: ClassVar[str] = "s2d"

    def __init__(
        self, config: ModelConfig, *, steps: int = 5, layers: int = 4, ffn_size: int = 0
    ) -> None:
        super().__init__(config, steps=steps, layers=layers, ffn_size=ffn_size)

    def logits(self, ops: Ops, state: Rows, step: int) -> Rows:
        return ops.head(self._parts(ops, state)[-1], norm="norm")

    def exits(self, ops: Ops, state: Rows, step: int) -> list[Any]:
        return [ops.head(each, norm="norm") for each in self._parts(ops, state)[:-1]]

    def _parts(self, ops: Ops, state: Rows) -> list[Any]:
        return list(ops.split(state, (self.config.hidden_size,) * self.layers))

    def _layers(self, ops: Ops, tokens: Rows, sees: Sight) -> Rows:
        x, parts = ops.embed(tokens), []
        for layer in range(self.layers):
            name, deepest = f"layer.{layer}", layer + 1 == self.layers
            here = sees if deepest else before(sees)
            x = decoder_layer(ops, self.config, layer_names(name, f"{name}.norm"), x, here, layer)
            parts.append(x)
        if sees == "last":
            parts[:-1] = map(ops.last, parts[:-1])
        return ops.concat(parts)
