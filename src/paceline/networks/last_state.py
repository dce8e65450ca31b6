"""Heads that others publish which read the target's last hidden state, after its final norm, alone.

EAGLE-1, EAGLE-2 and HASS are one network (Li et al. 2024, arXiv:2401.15077), Medusa another (Cai et
al. 2024, arXiv:2401.10774), of which our own of these names are wired otherwise. The MLP speculator
is a third (Wertheimer et al. 2024, arXiv:2404.19124).
"""

from __future__ import annotations

import math
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


class MlpSpeculator(Network):
    """Draft one token per step, each from the state before and an embedding of its own.

    The first state is the target's; if that is `normed`, parameter "input_norm" is `[width]`, all
    alike. To an RMS norm "ln" a "shift" is added. Where steps are `tied` they share all but the
    first matrix, "fc".
    """

    name: ClassVar[str] = "mlp-speculator"

    def __init__(
        self, config: ModelConfig, inner: int, tied: bool, normed: bool, steps: int
    ) -> None:
        """Set the shape; states are `inner` wide."""
        super().__init__(config, steps=steps)
        self.inner, self.alike, self.normed = inner, tied, normed
        kept = 0.5 ** (0.5 / steps)  # of a state, by a step
        self._embedded = math.sqrt((1 - kept * kept) * inner / 2) / kept

    @property
    def feature_width(self) -> int:
        return self.config.hidden_size

    def shapes(self) -> Shapes:
        inner, out = self.inner, Shapes(fc=(self.inner, self.config.hidden_size))
        for step in {self._of(each) for each in range(self.steps)}:
            out |= dict.fromkeys((f"ln.{step}", f"shift.{step}"), (inner,))
            out |= dict.fromkeys((f"emb.{step}", f"heads.{step}"), (self.config.vocab_size, inner))
        for step in range(1, 1 + self._of(self.steps - 1, 1)):
            out[f"proj.{step}"] = (inner, inner)
        return out

    def start(self, ops: Ops, features: Rows, tokens: Rows) -> Rows:
        hidden = ops.last(features)
        if self.normed:
            hidden = ops.norm(hidden, "input_norm")
        embedded = ops.last(ops.embed(tokens, table="emb.0"))
        return self._next(ops, hidden * ops.weight("scale"), "fc", embedded, 0)

    def logits(self, ops: Ops, state: Rows, step: int) -> Rows:
        return ops.linear(state, [f"heads.{self._of(step)}"])

    def advance(self, ops: Ops, state: Rows, tokens: Rows, step: int) -> Rows:
        embedded = ops.embed(tokens, table=f"emb.{self._of(step)}")
        return self._next(ops, state, f"proj.{self._of(step, 1)}", embedded, self._of(step))

    def _of(self, step: int, first: int = 0) -> int:
        # Of steps that share what they have, the first one.
        return min(step, first) if self.alike else step

    def _next(self, ops: Ops, state: Rows, name: str, embedded: Rows, step: int) -> Rows:
        added = ops.times(embedded, self._embedded)
        x = ops.norm(ops.linear(state, [name], residual=added), f"ln.{step}")
        return ops.gelu(x + ops.weight(f"shift.{step}"), exact=True)
