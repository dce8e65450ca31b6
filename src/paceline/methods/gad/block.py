"""Generalized aggressive decoding for Whisper (GAD: Xia et al. 2022, arXiv:2203.16487).

A block of masks is filled in one pass that is not autoregressive, by a decoder of its own that
looks at the sound; the model verifies. The paper's is a whole model with an encoder of its own.
Here the sound is heard once: two layers look at the keys and values that the model's last two
look at, and a layer before them reads the text by the model's hidden states. GAD++'s rule is
verifier `top-gap`.
"""

from __future__ import annotations

from dataclasses import replace
from typing import ClassVar, Self

from paceline.core.target import Listens
from paceline.drafters.base import DrafterContext
from paceline.drafters.network.drafter import TrainedDrafter
from paceline.errors import InvalidOption
from paceline.models.config import ModelConfig
from paceline.models.families.base import add_attention, add_feed_forward, heads_of
from paceline.models.ops import KV, Ops, Rows
from paceline.networks.base import Network, Shapes
from paceline.networks.blocks import layer_names, layer_shapes, opened_shapes, opened_slots

_LAYERS = 2  # over the masks


class Gad(Network):
    """Draft `width` tokens in one pass; `ffn_size` 0 takes the target's own."""

    name: ClassVar[str] = "gad"
    trained_by: ClassVar[str] = "paceline train gad"
    layers: ClassVar[int] = 1
    looks = True

    def __init__(self, config: ModelConfig, *, width: int = 25, ffn_size: int = 0) -> None:
        super().__init__(config, steps=1, width=width)
        self.ffn_size = ffn_size or config.ffn_size

    def shapes(self) -> Shapes:
        config, width = self.config, self.config.hidden_size
        out = opened_shapes(config, self.width, self.ffn_size)
        wide = config.heads * config.head_dim
        for layer in range(_LAYERS):
            name = f"masks.{layer}"
            out |= {f"{name}.norm": (width,), f"{name}.look_norm": (width,)}
            out |= {f"{name}.look_q": (wide, width), f"{name}.look_o.residual": (width, wide)}
            out |= layer_shapes(name, config, width, self.ffn_size)
        return {**out, "norm": (width,)}

    def start(self, ops: Ops, features: Rows, tokens: Rows) -> Rows:
        return self.fill(ops, opened_slots(ops, self.config, features, tokens))

    def fill(self, ops: Ops, x: Rows) -> Rows:
        """Run the layers over slots, which see one another both ways and all of the sound."""
        heads = replace(heads_of(self.config, 0), rotary=None)
        for layer in range(_LAYERS):
            name = f"masks.{layer}"
            names = layer_names(name, f"{name}.norm")
            x = add_attention(ops, self.config, names, x, "slots")
            queries = ops.linear(x, [f"{name}.look_q"], norm=f"{name}.look_norm")
            seen = ops.attend(KV(layer - _LAYERS, memory=True), queries, heads, "root")
            x = ops.linear(seen, [f"{name}.look_o.residual"], residual=x)
            x = add_feed_forward(ops, names, x)
        return x


def hearing(context: DrafterContext, drafter: str) -> Listens:
    """Return the target; InvalidOption if it hears no sound."""
    target = context.resources.loaded.target
    if not isinstance(target, Listens) or not target.mels:
        raise InvalidOption(
            f"drafter '{drafter}' needs a sound, and this model hears none: choose a Whisper"
        )
    return target


class GadDrafter(TrainedDrafter):
    name: ClassVar[str] = "gad"
    requires = "a Whisper; weights for it (paceline train gad)"
    paper = "after GAD, Xia et al. 2022, arXiv:2203.16487"

    @classmethod
    def create(cls, context: DrafterContext) -> Self:
        """Load weights as `TrainedDrafter.create`, but do not learn while serving."""
        hearing(context, cls.name)
        if "online" in context.options:
            raise InvalidOption(
                "drafter 'gad' learns by its sounds, which are not kept: leave out online, and use "
                "`paceline train gad`"
            )
        return super().create(context)
