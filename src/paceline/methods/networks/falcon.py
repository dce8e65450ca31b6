"""Falcon drafter: semi-autoregressive, `width` tokens per pass (Gao et al. 2024, arXiv:2412.12639).

A two-layer LSTM fuses hidden state and token of a row; one decoder layer makes of it the hidden
state `width` places on. Rows of a block see one another both ways (relaxed causal mask), the first
block being the newest rows of the context. As in the published code, no LSTM state goes from row to
row. Trained by glancing distillation (`glancing.py`); the published tree is `growth=static-falcon`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar

from paceline.drafters.network.drafter import TrainedDrafter
from paceline.models.config import ModelConfig
from paceline.models.families.base import add_feed_forward, heads_of
from paceline.models.ops import Ops, Rows
from paceline.networks.base import Network, Shapes
from paceline.networks.blocks import decoder_layer, last_hidden, layer_names, layer_shapes


def lstm(ops: Ops, name: str, x: Rows, width: int) -> Rows:
    """Apply an LSTM cell to each row, from a zero state; matrix `name` is `[3 * width, inputs]`.

    A zero state has nothing to forget: there is no forget gate and no recurrent matrix.
    """
    enters, new, leaves = ops.split(ops.linear(x, [name]), (width,) * 3)
    return ops.gate(ops.tanh(ops.gate(ops.tanh(new), enters)), leaves)


class Falcon(Network):
    """Draft `width` tokens per pass of its layer; the state is as many predicted hidden states."""

    name: ClassVar[str] = "falcon"
    layers: ClassVar[int] = 1

    def __init__(
        self,
        config: ModelConfig,
        *,
        steps: int = 3,
        width: int = 2,
        ffn_size: int = 0,
        glancing: bool = True,
    ) -> None:
        super().__init__(config, steps=steps, width=width)
        self.overlap = width - 1
        self.ffn_size = ffn_size or config.ffn_size
        self.glancing = glancing

    def shapes(self) -> Shapes:
        width = self.config.hidden_size
        return {
            "hidden_scale": (width,),
            "embed_norm": (width,),
            "lstm.0": (3 * width, 2 * width),
            "lstm.1": (3 * width, width),
            "layer_norm": (width,),
            **layer_shapes("layer", self.config, width, self.ffn_size),
            "norm": (width,),
        }

    def start(self, ops: Ops, features: Rows, tokens: Rows) -> Rows:
        x = self._fuse(ops, last_hidden(ops, self.config, features), tokens)
        qkv = ops.linear(x, ["layer.qkv"], norm="layer_norm")
        mixed = ops.attend(0, qkv, heads_of(self.config, 0), "last", self.width)
        x = ops.linear(mixed, ["layer.o.residual"], residual=ops.last(x, self.width))
        return ops.norm(add_feed_forward(ops, layer_names("layer"), x), "norm")

    def logits(self, ops: Ops, state: Rows, step: int) -> Rows:
        return ops.head(state)

    def advance(self, ops: Ops, state: Rows, tokens: Rows, step: int) -> Rows:
        x = self._fuse(ops, state, tokens)
        names = layer_names("layer", "layer_norm")
        return ops.norm(decoder_layer(ops, self.config, names, x, "block"), "norm")

    def features_of(self, ops: Ops, state: Rows) -> Rows:
        return state

    def reveal(self, batch: Any, places: Any, progress: float, seed: Sequence[int]) -> Any:
        from paceline.methods.networks.glancing import glance  # imports torch

        return glance(self.width, batch, places, progress, seed) if self.glancing else None

    def _fuse(self, ops: Ops, hidden: Rows, tokens: Rows) -> Rows:
        width = self.config.hidden_size
        embedded = ops.norm(ops.embed(tokens), "embed_norm")
        read = ops.concat([embedded, hidden * ops.weight("hidden_scale")])
        return lstm(ops, "lstm.1", lstm(ops, "lstm.0", read, width), width)


class FalconDrafter(TrainedDrafter):
    """Falcon: a block of tokens per step."""

    name: ClassVar[str] = "falcon"
    paper = "after Falcon, Gao et al. 2024, arXiv:2412.12639"
