"""LongSpec: a drafter whose cache does not grow (Yang et al. 2025, arXiv:2502.17421).

A decoder layer sees no further back than `reach` rows, so that its memory and the work of a step
stay the same however long the text is. What lies before reaches it in one of two ways. By default
it is the target's features alone, which EAGLE-3's layer reads, and which tell of all that the
target has seen. With `cross`, as published, the layer also attends to keys and values that the
target itself keeps of the whole text, in the target's own memory, without a copy.

The paper takes the target's last layer for that. Here it is the layer that the high features enter:
its keys and values follow from what training knows of a text, and a norm and a matrix of the
target, frozen. The random offsets that the paper trains with are left out, since rotary positions
are relative: without keys that stay at the head of the text, they change nothing.
"""

from __future__ import annotations

from typing import Any, ClassVar

from paceline.models.config import feature_layers
from paceline.networks.base import Geometry, Shapes
from paceline.networks.blocks import Attend, attention, feed_forward
from paceline.networks.eagle3 import Eagle3
from paceline.networks.ops import Ops, Rows
from paceline.options import require

_LENT = ("target.0.norm", "target.0.qkv")


class LongSpec(Eagle3):
    """Drafts one token per pass of its layer, over a window of the text."""

    name: ClassVar[str] = "longspec"

    def __init__(
        self,
        geometry: Geometry,
        *,
        steps: int = 5,
        ffn_size: int = 0,
        reach: int = 512,
        cross: bool = False,
    ) -> None:
        """Size the network.

        Args:
            geometry: of the target, with the number of its layers for `cross`.
            steps: most tokens of one draft.
            ffn_size: of the layer; 0 takes the target's own.
            reach: rows that the layer sees, its own included.
            cross: whether it also attends to the target's own keys and values, of all rows.

        Raises:
            InvalidOption: a size is below 1.
        """
        super().__init__(geometry, steps=steps, ffn_size=ffn_size)
        require(reach >= 1, "reach", reach, "1 or more")
        self.reach = reach
        self.reads_target = cross
        if cross:
            count = geometry.target_layers
            require(count >= 1, "target_layers of a geometry", count, "1 or more for cross")
            self.above = count - feature_layers(count)[-1]

    def settings(self) -> dict[str, Any]:
        """All sizes."""
        return {**super().settings(), "reach": self.reach, "cross": self.reads_target}

    def shapes(self) -> Shapes:
        """Those of EAGLE-3, and what asks the target."""
        shape, out = self.geometry, super().shapes()
        if self.reads_target:
            wide = shape.heads * shape.head_dim
            out |= {
                "cross.norm": (shape.width,),
                "cross.q": (wide, shape.width),
                "cross.o.residual": (shape.width, wide),
            }
        return out

    def borrowed(self) -> dict[str, str]:
        """What makes keys and values of the layer that the high features enter."""
        return {mine: theirs for mine, theirs in super().borrowed().items() if mine in _LENT}

    def start(self, ops: Ops, features: Rows, tokens: Rows) -> Rows:
        """The layer over the context, of which the target has keys and values."""
        shape = self.geometry

        def make() -> tuple[Rows, Rows]:
            high = ops.split(features, (2 * shape.width, shape.width, shape.width))[1]
            wide, narrow = shape.heads * shape.head_dim, shape.kv_heads * shape.head_dim
            rows = ops.linear(ops.norm(high, "target.0.norm"), "target.0.qkv")
            _, keys, values = ops.split(rows, (wide, narrow, narrow))
            return keys, values

        if self.reads_target:
            ops.know_target(make)
        return super().start(ops, features, tokens)

    def _decode(self, ops: Ops, x: Rows, read: Rows, attend: Attend) -> Rows:
        if not self.reads_target:
            return super()._decode(ops, x, read, attend)
        x = attention(ops, "layer", self.geometry, x, read, attend)
        asking = ops.linear(ops.norm(x, "cross.norm"), "cross.q")
        x = x + ops.linear(ops.attend_target(asking), "cross.o.residual")
        return feed_forward(ops, "layer", self.ffn_size, x)
