"""S2D: nested drafts, each a prefix of the next (sorted speculative decoding, Kavehzadeh et
al. 2024).

A stack of decoder layers with an exit behind every one, all through one norm and the target's LM
head. Trained with the loss of all exits, so that weights of a deep network hold those of every
shallower one: load them with a smaller `layers` to draft faster and with fewer hits. A row reads
its token beside what the root's features say, so no exit is fed by a deeper one, and the layers
that an exit leaves out are simply not run.
"""

from __future__ import annotations

from typing import Any, ClassVar

from paceline.networks.base import Geometry, Network, Shapes
from paceline.networks.blocks import Attend, decoder_layer, layer_shapes
from paceline.networks.ops import Ops, Rows
from paceline.options import require


class S2D(Network):
    """Drafts one token per pass of its layers.

    Its state is the fused features of the root, then the output of every layer.
    """

    name: ClassVar[str] = "s2d"

    def __init__(
        self, geometry: Geometry, *, steps: int = 4, layers: int = 3, ffn_size: int = 0
    ) -> None:
        """Size the network.

        Args:
            geometry: of the target.
            steps: most tokens of one draft.
            layers: up to the exit that drafts; weights trained with more hold these.
            ffn_size: of the layers; 0 takes the target's own.

        Raises:
            InvalidOption: a size is below 1.
        """
        super().__init__(geometry, steps=steps)
        require(layers >= 1, "layers", layers, "1 or more")
        self.layers = layers  # type: ignore[misc]
        self.ffn_size = ffn_size or geometry.ffn_size

    def settings(self) -> dict[str, Any]:
        """All sizes."""
        return {"steps": self.steps, "layers": self.layers, "ffn_size": self.ffn_size}

    def shapes(self) -> Shapes:
        """Fusion, and the layers."""
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
        """All layers over the context."""
        fused = ops.linear(features * ops.weight("scale"), "fuse")
        fused = ops.norm(fused, "fuse_norm")
        return ops.last(self._layers(ops, fused, tokens, ops.attend_context))

    def logits(self, ops: Ops, state: Rows, step: int) -> Rows:
        """Of the deepest exit."""
        return self._exit(ops, self._parts(ops, state)[-1])

    def exits(self, ops: Ops, state: Rows, step: int) -> list[Rows]:
        """Of all others, the shallowest first."""
        return [self._exit(ops, part) for part in self._parts(ops, state)[1:-1]]

    def advance(self, ops: Ops, state: Rows, tokens: Rows, step: int) -> Rows:
        """All layers over one more token, beside the root's features."""
        return self._layers(ops, self._parts(ops, state)[0], tokens, ops.attend_draft)

    def _layers(self, ops: Ops, fused: Rows, tokens: Rows, attend: Attend) -> Rows:
        embedded = ops.norm(ops.embed(tokens), "embed_norm")
        x = ops.linear(ops.concat([embedded, fused]), "enter")
        parts = [fused]
        for layer in range(self.layers):
            name = f"layer.{layer}"
            read = ops.norm(x, f"{name}.norm")
            x = decoder_layer(ops, name, self.geometry, self.ffn_size, x, read, attend, layer)
            parts.append(x)
        return ops.concat(parts)

    def _parts(self, ops: Ops, state: Rows) -> list[Rows]:
        return ops.split(state, (self.geometry.width,) * (1 + self.layers))

    def _exit(self, ops: Ops, x: Rows) -> Rows:
        return ops.head(ops.norm(x, "norm"))
