"""Heads that others publish which read the target's last hidden state, after its final norm, alone.

EAGLE-1, EAGLE-2 and HASS are one network (Li et al. 2024, arXiv:2401.15077), Medusa another (Cai et
al. 2024, arXiv:2401.10774). Our own of these names are wired otherwise.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import ClassVar

from paceline.models.config import ModelConfig
from paceline.models.families.base import LayerNames
from paceline.models.ops import Ops, Rows, Sight
from paceline.networks.base import Network, Shapes
from paceline.networks.blocks import before, decoder_layer, family_shapes, with_biases


class PublishedEagle(Network):
    """Draft one token per pass of its layers, whose output is the next hidden state.

    The first layer has no norm before its attention, and none stands before the LM head.
    """

    name: ClassVar[str] = "eagle"

    def __init__(self, config: ModelConfig, present: Collection[str], steps: int) -> None:
        """Set the shape; `present` are its tensors."""
        super().__init__(config, steps=steps)
        self.present = present
        self.layers = config.layers  # type: ignore[misc]

    @property
    def feature_width(self) -> int:
        return self.config.hidden_size

    def shapes(self) -> Shapes:
        width = self.config.hidden_size
        out: Shapes = {"fc": (width, 2 * width)} | family_shapes(self.config, width)
        del out["layers.0.attention_norm"]
        return with_biases(out, self.present)

    def start(self, ops: Ops, features: Rows, tokens: Rows) -> Rows:
        return self._layers(ops, features, tokens, "last")

    def logits(self, ops: Ops, state: Rows, step: int) -> Rows:
        return ops.head(state)

    def advance(self, ops: Ops, state: Rows, tokens: Rows, step: int) -> Rows:
        return self._layers(ops, state, tokens, "draft")

    def _layers(self, ops: Ops, hidden: Rows, tokens: Rows, sees: Sight) -> Rows:
        read = ops.concat([ops.embed(tokens), hidden]) * ops.weight("scale")
        x = ops.linear(read, ["fc"])
        for index in range(self.config.layers):
            here = sees if index + 1 == self.config.layers else before(sees)
            names = LayerNames.of(index)
            names = names if index else names._replace(norm=None)
            x = decoder_layer(ops, self.config, names, x, here, index)
        return x


class PublishedMedusa(Network):
    """Draft depths 1 to `width` at once: a few residual blocks each, and a LM head of its own.

    Without LM heads of their own all have the one beside them, or the target's.
    """

    name: ClassVar[str] = "medusa"

    def __init__(self, config: ModelConfig, heads: int, blocks: int, own: bool) -> None:
        """Set the shape; `own` heads have LM heads."""
        super().__init__(config, steps=1, width=heads)
        self.blocks, self.own = blocks, own

    @property
    def feature_width(self) -> int:
        return self.config.hidden_size

    def shapes(self) -> Shapes:
        width, out = self.config.hidden_size, Shapes()
        for head in range(self.width):
            for block in range(self.blocks):
                out |= {f"blocks.{head}.{block}": (width, width)}
                out |= {f"blocks.{head}.{block}.bias": (width,)}
            out |= {f"heads.{head}": (self.config.vocab_size, width)} if self.own else {}
        return out

    def start(self, ops: Ops, features: Rows, tokens: Rows) -> Rows:
        hidden, states = ops.last(features), []
        for head in range(self.width):
            x = hidden
            for block in range(self.blocks):
                x = x + ops.silu(ops.linear(x, [f"blocks.{head}.{block}"]))
            states.append(x)
        return ops.slots(ops.concat(states), self.width)

    def logits(self, ops: Ops, state: Rows, step: int) -> Rows:
        if not self.own:
            return ops.head(state)
        parts = ops.split(ops.slots(state, 1), (self.config.hidden_size,) * self.width)
        heads = [ops.linear(x, [f"heads.{head}"]) for head, x in enumerate(parts)]
        return ops.slots(ops.concat(heads), self.width)
