"""Hidden transfer: pseudo hidden states of the next tokens (Wu et al. 2024, arXiv:2404.12022).

A linear map makes of a token's hidden state that of a token further on, below one of the target's
last layers; the others, frozen, run on both. Pseudo states enter at several layers, the nearest
first. `methods/layers/hidden_transfer.py` lets them ride in the verifying forward.
"""

from __future__ import annotations

from typing import ClassVar

from paceline.core.options import require
from paceline.models.config import ModelConfig
from paceline.models.families.base import LayerNames, heads_of
from paceline.models.ops import Ops, Rows, Sight
from paceline.networks.base import Network, Shapes
from paceline.networks.blocks import decoder_layer, layers_above


class HiddenTransfer(Network):
    """Draft `width` tokens from pseudo states, which enter at `entries` layers, 0 for all of the
    last.

    Raises:
        InvalidOption: a size is out of range, or the number of layers is unknown.
    """

    name: ClassVar[str] = "hidden-transfer"

    def __init__(self, config: ModelConfig, *, width: int = 4, entries: int = 0) -> None:
        super().__init__(config, steps=1, width=width)
        self.above = layers_above(config, "hidden transfer")
        require(0 <= entries <= self.above, "entries", entries, f"0 to {self.above}")
        self.entries = entries or self.above
        self.layers = self.above  # type: ignore[misc]

    @property
    def enters(self) -> list[int]:
        """By pseudo state, how many of the last layers it is spared."""
        return [each * self.entries // self.width for each in range(self.width)]

    def shapes(self) -> Shapes:
        # The maps start as zero: every pseudo state starts as a copy of the token's own.
        width = self.config.hidden_size
        maps = {f"transfer.{each}.residual": (width, width) for each in range(self.width)}
        return {"high_scale": (width,), "high_spread": (width,), **maps}

    def target_weights(self) -> list[str]:
        return [*super().target_weights(), "norm"]

    def start(self, ops: Ops, features: Rows, tokens: Rows) -> Rows:
        texts = self.below(ops, features)
        # One after the other: rows that enter further up are not there further down.
        pseudo = []
        for each, first in enumerate(self.enters):
            moved = ops.linear(
                texts[first] * ops.weight("high_scale"), [f"transfer.{each}.residual"]
            )
            x = texts[first] + moved * ops.weight("high_spread")
            for layer in range(first, self.above):
                x = self.layer(ops, layer, x, "draft")
            pseudo.append(x)
        return ops.slots(ops.concat(pseudo), self.width)

    def below(self, ops: Ops, features: Rows) -> list[Rows]:
        """Run the text through the last layers, and return what entered each, of drafts alone."""
        width, last = self.config.hidden_size, self.above - 1
        x = ops.split(features, (2 * width, width, width))[1]
        found = [ops.last(x)]
        for layer in range(last):
            x = self.layer(ops, layer, x, "context")
            found.append(ops.last(x))
        names = LayerNames.of(self.runs[last])
        qkv = ops.linear(x, names.qkv, norm=names.norm)
        ops.attend(last, qkv, heads_of(self.config, last), "last")  # its keys
        return found

    def layer(self, ops: Ops, layer: int, x: Rows, sees: Sight) -> Rows:
        """Return what leaves one of the last layers."""
        return decoder_layer(ops, self.config, LayerNames.of(self.runs[layer]), x, sees, layer)
