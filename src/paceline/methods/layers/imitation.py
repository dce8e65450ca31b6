"""FastVLM's self-speculation on text (Bajpai and Hanawal 2025, arXiv:2510.22641).

First layers draft. An imitation network makes of their state what the last layer would have: one
decoder layer, trained towards the target's last hidden state (cosine) and its distribution (KL).
Drafting halts behind a doubtful token, and verification goes on from the shallow states.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar, Literal

import numpy as np

from paceline.core.types import LogitArray
from paceline.methods.layers.double_exit import AdapterCache, DoubleExit, normed
from paceline.methods.networks.kangaroo import Kangaroo
from paceline.models.config import ModelConfig
from paceline.models.families.base import LayerNames
from paceline.models.ops import Ops, Rows, Sight
from paceline.networks.base import Shapes
from paceline.networks.blocks import before, decoder_layer, layer_names, layer_shapes, stack


class Imitation(Kangaroo):
    """Draft one token per pass of the target's first `exit` layers and the imitation network."""

    name: ClassVar[str] = "imitation"
    feature_distance: ClassVar[Literal["smooth-l1", "cosine"]] = "cosine"

    def __init__(
        self, config: ModelConfig, *, steps: int = 6, exit: int = 6, ffn_size: int = 0
    ) -> None:
        """Size the network; `ffn_size` 0 takes the target's."""
        super().__init__(config, steps=steps, exit=exit)
        self.ffn_size = ffn_size or config.ffn_size

    def shapes(self) -> Shapes:
        width = self.config.hidden_size
        layer = layer_shapes("adapter", self.config, width, self.ffn_size)
        return {"adapter.norm": (width,), **layer, "norm": (width,)}

    def features_of(self, ops: Ops, state: Rows) -> Rows:
        return ops.norm(state, "norm")

    def _layers(self, ops: Ops, tokens: Rows, sees: Sight) -> Rows:
        names = [LayerNames.of(layer) for layer in self.runs]
        x = stack(ops, self.config, names, ops.embed(tokens), before(sees))
        return decoder_layer(
            ops, self.config, layer_names("adapter", "adapter.norm"), x, sees, self.exit
        )


class Imitator(AdapterCache):
    """Keys and values of one sequence in the imitation network, which is wider than an adapter."""

    def append(self, tokens: Sequence[int], states: LogitArray) -> LogitArray:
        x = self.attended(tokens, states)
        inner = normed(x, self.weights["adapter.ffn_norm"], self.shape.norm_eps)
        gate, up = np.split(inner @ self.weights["adapter.gate_up"].T, 2, axis=1)
        gated = gate / (1 + np.exp(-gate)) * up
        x = x + gated @ self.weights["adapter.down.residual"].T
        return normed(x, self.weights["norm"], self.shape.norm_eps)


class ImitationDrafter(DoubleExit):
    """Draft with the first layers and the imitation network until a token is doubtful."""

    name: ClassVar[str] = "imitation"
    requires = "runtime cpu or torch; weights for the model (paceline train drafter imitation)"
    paper = "after FastVLM, Bajpai and Hanawal 2025, arXiv:2510.22641"
    network: ClassVar[str] = Imitation.name
    adapter: ClassVar[type[AdapterCache]] = Imitator
