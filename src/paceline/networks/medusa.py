"""Medusa: one head per depth on the target's last hidden state (Cai et al. 2024, section 2.1).

All heads share the target's LM head; what is trained is one residual block per depth.
"""

from __future__ import annotations

from typing import Any, ClassVar

from paceline.networks.base import Geometry, Network, Shapes
from paceline.networks.ops import Ops, Rows


class Medusa(Network):
    """Drafts all depths at once, each from the hidden state alone: blind to drafted tokens, and to
    the root, which the target's own head guesses at depth 0."""

    name: ClassVar[str] = "medusa"

    def __init__(self, geometry: Geometry, *, width: int = 4) -> None:
        """`width` heads, for depths 1 to `width`."""
        super().__init__(geometry, steps=1, width=width)

    def settings(self) -> dict[str, Any]:
        """Number of heads."""
        return {"width": self.width}

    def shapes(self) -> Shapes:
        """One square matrix per head, side by side, which starts as zero: every head starts as the
        target's own prediction."""
        return {"heads.residual": (self.width * self.geometry.width, self.geometry.width)}

    def start(self, ops: Ops, features: Rows, tokens: Rows) -> Rows:
        """`h + silu(U_i h)` for every head, in slots."""
        hidden = ops.last(ops.split(features, (3 * self.geometry.width, self.geometry.width))[1])
        moved = ops.silu(ops.slots(ops.linear(hidden, "heads.residual"), self.width))
        return hidden + moved

    def logits(self, ops: Ops, state: Rows, step: int) -> Rows:
        """By the shared LM head."""
        return ops.head(state)
