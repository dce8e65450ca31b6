"""Hydra drafter: sequentially dependent heads (Ankner et al. 2024, sections 3 and 4).

With `prefix`, a decoder layer encodes the context first (Hydra++). Each depth is a residual step
on the last drafted token. All depths share weights, so drafts may exceed the trained depth.
"""

from __future__ import annotations

from typing import ClassVar

from paceline.drafters.network.drafter import TrainedDrafter
from paceline.models.config import ModelConfig
from paceline.models.ops import Ops, Rows
from paceline.networks.base import Network, Shapes
from paceline.networks.blocks import decoder_layer, last_hidden, layer_names, layer_shapes


class Hydra(Network):
    """Draft one token per step; sizes of 0 take the target's own.

    `prefix` adds a decoder layer over the context; `hidden` is the width inside a step.
    """

    name: ClassVar[str] = "hydra"

    def __init__(
        self,
        config: ModelConfig,
        *,
        steps: int = 4,
        prefix: bool = True,
        hidden: int = 0,
        ffn_size: int = 0,
    ) -> None:
        super().__init__(config, steps=steps)
        self.prefix = prefix
        self.layers = 1 if prefix else 0  # type: ignore[misc]
        self.hidden = hidden or config.hidden_size
        self.ffn_size = ffn_size or config.ffn_size

    def shapes(self) -> Shapes:
        width = self.config.hidden_size
        out: Shapes = {
            "embed_norm": (width,),
            "step.up": (2 * self.hidden, 2 * width),
            "step.down.residual": (width, self.hidden),
            "norm": (width,),
        }
        if self.prefix:
            out |= {"scale": (4 * width,), "fuse": (width, 4 * width), "fuse_norm": (width,)}
            out |= layer_shapes("prefix", self.config, 2 * width, self.ffn_size)
        return out

    def start(self, ops: Ops, features: Rows, tokens: Rows) -> Rows:
        embedded = ops.embed(tokens)
        if not self.prefix:
            hidden = ops.last(last_hidden(ops, self.config, features))
            return self._step(ops, hidden, ops.last(embedded))
        fused = ops.linear(features * ops.weight("scale"), ["fuse"])
        read = ops.concat([ops.norm(embedded, "embed_norm"), ops.norm(fused, "fuse_norm")])
        return decoder_layer(ops, self.config, layer_names("prefix"), fused, "last", read=read)

    def advance(self, ops: Ops, state: Rows, tokens: Rows, step: int) -> Rows:
        return self._step(ops, state, ops.embed(tokens))

    def _step(self, ops: Ops, state: Rows, embedded: Rows) -> Rows:
        read = ops.concat([ops.norm(state, "norm"), ops.norm(embedded, "embed_norm")])
        return ops.linear(ops.gated(read, ["step.up"]), ["step.down.residual"], residual=state)


class HydraDrafter(TrainedDrafter):
    name: ClassVar[str] = "hydra"
    paper = "after Hydra++, Ankner et al. 2024, arXiv:2402.05109"
