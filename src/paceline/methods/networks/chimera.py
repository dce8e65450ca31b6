"""Chimera drafter: a trigram encoder and one decoder layer (Zeng et al. 2024, arXiv:2402.15758).

The layer reads two kinds of rows: the target's hidden states in the context, and trigrams of tokens
that have none yet, the root and what is drafted. Its output stands for the hidden state; a residual
block reads it beside the target's newest one, and the frozen LM head reads what comes of both.
"""

from __future__ import annotations

from typing import ClassVar

from paceline.drafters.network.drafter import TrainedDrafter
from paceline.models.config import ModelConfig
from paceline.models.families.base import heads_of
from paceline.models.ops import Ops, Rows
from paceline.networks.base import Network, Shapes
from paceline.networks.blocks import decoder_layer, last_hidden, layer_names, layer_shapes


class Chimera(Network):
    """Draft one token per step.

    The state is a predicted hidden state, the target's newest one and two embeddings.
    """

    name: ClassVar[str] = "chimera"
    layers: ClassVar[int] = 1
    overlap = 2  # with its own row a trigram

    def __init__(self, config: ModelConfig, *, steps: int = 5, ffn_size: int = 0) -> None:
        super().__init__(config, steps=steps)
        self.ffn_size = ffn_size or config.ffn_size

    def shapes(self) -> Shapes:
        width = self.config.hidden_size
        return {
            "hidden_scale": (width,),
            "trigram.norm": (3 * width,),
            "trigram.residual": (3 * width, 3 * width),
            "trigram.out": (width, 3 * width),
            "layer_norm": (width,),
            **layer_shapes("layer", self.config, width, self.ffn_size),
            "norm": (width,),
            "both.norm": (2 * width,),
            "both.residual": (2 * width, 2 * width),
            "both.out.residual": (width, 2 * width),
        }

    def start(self, ops: Ops, features: Rows, tokens: Rows) -> Rows:
        hidden = last_hidden(ops, self.config, features)
        read = hidden * ops.weight("hidden_scale")
        qkv = ops.linear(read, ["layer.qkv"], norm="layer_norm")
        ops.attend(0, qkv, heads_of(self.config, 0), "last")  # fills the cache
        grams = ops.slots(ops.last(ops.embed(tokens), 3), 1)
        return self._draft(ops, ops.last(hidden), grams)

    def logits(self, ops: Ops, state: Rows, step: int) -> Rows:
        foretold, hidden, _ = self._parts(ops, state)
        both = ops.norm(ops.concat([foretold, hidden]), "both.norm")
        both = both + ops.silu(ops.linear(both, ["both.residual"]))
        return ops.head(ops.linear(both, ["both.out.residual"], residual=foretold))

    def advance(self, ops: Ops, state: Rows, tokens: Rows, step: int) -> Rows:
        _, hidden, before = self._parts(ops, state)
        return self._draft(ops, hidden, ops.concat([before, ops.embed(tokens)]))

    def features_of(self, ops: Ops, state: Rows) -> Rows:
        return self._parts(ops, state)[0]

    def _draft(self, ops: Ops, hidden: Rows, embeddings: Rows) -> Rows:
        width = self.config.hidden_size
        grams = ops.norm(embeddings, "trigram.norm")
        grams = grams + ops.silu(ops.linear(grams, ["trigram.residual"]))
        x = ops.linear(grams, ["trigram.out"])
        x = decoder_layer(ops, self.config, layer_names("layer", "layer_norm"), x, "draft")
        newest = ops.split(embeddings, (width, 2 * width))[1]
        return ops.concat([ops.norm(x, "norm"), hidden, newest])

    def _parts(self, ops: Ops, state: Rows) -> list[Rows]:
        width = self.config.hidden_size
        return ops.split(state, (width, width, 2 * width))


class ChimeraDrafter(TrainedDrafter):
    """Chimera's trigrams and layer."""

    name: ClassVar[str] = "chimera"
    paper = "after Chimera, Zeng et al. 2024, arXiv:2402.15758"
