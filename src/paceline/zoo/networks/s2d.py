"""S2D drafter: early exits of one stack (sorted speculative decoding, Kavehzadeh et al. 2024).

Each layer has an exit through one norm and the LM head, and all are trained. So weights of a deep
network hold every shallower one: a smaller `layers` drafts faster and less accurately.
"""

from __future__ import annotations

from typing import Any, ClassVar

from paceline.core.options import require
from paceline.drafters.network.drafter import TrainedDrafter
from paceline.networks.base import Geometry, Network, Shapes
from paceline.networks.blocks import before, decoder_layer, layer_shapes
from paceline.networks.ops import Ops, Rows, Sight


class S2D(Network):
    """Draft one token per pass; the state is the root's fused features, then each layer's output.

    `layers` is the depth of the drafting exit. Raises InvalidOption if a size is below 1.
    """

    name: ClassVar[str] = "s2d"

    def __init__(
        self, geometry: Geometry, *, steps: int = 4, layers: int = 3, ffn_size: int = 0
    ) -> None:
        super().__init__(geometry, steps=steps)
        require(layers >= 1, "layers", layers, "1 or more")
        self.layers = layers  # type: ignore[misc]
        self.ffn_size = ffn_size or geometry.ffn_size

    def settings(self) -> dict[str, Any]:
        return {"steps": self.steps, "layers": self.layers, "ffn_size": self.ffn_size}

    def shapes(self) -> Shapes:
        width = self.geometry.width
        out: Shapes = {
            "scale": (4 * width,),
            "fuse": (width, 4 * width),
            "fuse_norm": (width,),
            "embed_norm": (width,),
            "enter": (width, 2 * width),
            "norm": (width,),
        }
        for layer in range(self.layers):
            out[f"layer.{layer}.norm"] = (width,)
            out |= layer_shapes(f"layer.{layer}", self.geometry, width, self.ffn_size)
        return out

    def start(self, ops: Ops, features: Rows, tokens: Rows) -> Rows:
        fused = ops.linear(features * ops.weight("scale"), "fuse")
        fused = ops.norm(fused, "fuse_norm")
        return self._layers(ops, fused, tokens, "last")

    def logits(self, ops: Ops, state: Rows, step: int) -> Rows:
        return self._exit(ops, self._parts(ops, state)[-1])

    def exits(self, ops: Ops, state: Rows, step: int) -> list[Rows]:
        return [self._exit(ops, part) for part in self._parts(ops, state)[1:-1]]

    def advance(self, ops: Ops, state: Rows, tokens: Rows, step: int) -> Rows:
        return self._layers(ops, self._parts(ops, state)[0], tokens, "draft")

    def _layers(self, ops: Ops, fused: Rows, tokens: Rows, sees: Sight) -> Rows:
        embedded = ops.norm(ops.embed(tokens), "embed_norm")
        x = ops.linear(ops.concat([embedded, fused]), "enter")
        parts = [fused]
        for layer in range(self.layers):
            name, deepest = f"layer.{layer}", layer + 1 == self.layers
            here = sees if deepest else before(sees)
            x = decoder_layer(ops, name, x, here, layer, norm=f"{name}.norm")
            parts.append(x)
        if sees == "last":
            parts[:-1] = map(ops.last, parts[:-1])
        return ops.concat(parts)

    def _parts(self, ops: Ops, state: Rows) -> list[Rows]:
        return ops.split(state, (self.geometry.width,) * (1 + self.layers))

    def _exit(self, ops: Ops, x: Rows) -> Rows:
        return ops.head(x, norm="norm")


class S2DDrafter(TrainedDrafter):
    """Nested drafts; option `layers` cuts the network at a shallower exit."""

    name: ClassVar[str] = "s2d"
    sizes: ClassVar[tuple[str, ...]] = ("layers",)
