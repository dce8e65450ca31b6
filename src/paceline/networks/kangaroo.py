"""Kangaroo: the target's own first layers and an adapter (Liu et al. 2024, arXiv:2404.18911).

The text runs through the shallow layers, which are the target's, frozen, and through what is
trained: one attention around a residual and a norm, without a feed-forward part, under the target's
LM head. Drafted tokens run the same way. The second early exit, to stop where the likeliest token
is not likely enough, is `stop` of the drafter. The shallow layers keep keys and values of their
own, so that verification, which must be the same bits as plain decoding, computes them again.
"""

from __future__ import annotations

from typing import Any, ClassVar

from paceline.networks.base import Geometry, Network, Shapes
from paceline.networks.blocks import Attend, attention, attention_shapes
from paceline.networks.llama_layers import stack
from paceline.networks.ops import Ops, Rows
from paceline.options import require


class Kangaroo(Network):
    """Drafts one token per pass of the shallow layers and the adapter."""

    name: ClassVar[str] = "kangaroo"
    reads_features: ClassVar[bool] = False

    def __init__(self, geometry: Geometry, *, steps: int = 6, exit: int = 2) -> None:
        """Size the network.

        Args:
            geometry: of the target.
            steps: most tokens of one draft; training does not depend on it.
            exit: layers of the target that a token runs through.

        Raises:
            InvalidOption: a size is below 1.
        """
        super().__init__(geometry, steps=steps)
        require(exit >= 1, "exit", exit, "1 or more")
        self.exit = exit
        self.layers = exit + 1  # type: ignore[misc]

    def settings(self) -> dict[str, Any]:
        """All sizes."""
        return {"steps": self.steps, "exit": self.exit}

    def shapes(self) -> Shapes:
        """The adapter and the final norm."""
        width = self.geometry.width
        return {
            "adapter.norm": (width,),
            **attention_shapes("adapter", self.geometry, width),
            "norm": (width,),
        }

    def start(self, ops: Ops, features: Rows, tokens: Rows) -> Rows:
        """The shallow layers and the adapter over the text."""
        return ops.last(self._layers(ops, tokens, ops.attend_context))

    def logits(self, ops: Ops, state: Rows, step: int) -> Rows:
        """By the target's LM head, after a norm."""
        return ops.head(ops.norm(state, "norm"))

    def advance(self, ops: Ops, state: Rows, tokens: Rows, step: int) -> Rows:
        """The same over one more token."""
        return self._layers(ops, tokens, ops.attend_draft)

    def _layers(self, ops: Ops, tokens: Rows, attend: Attend) -> Rows:
        shape, x = self.geometry, ops.embed(tokens)
        x = stack(ops, "target", shape, self.exit, shape.ffn_size, x, attend)
        read = ops.norm(x, "adapter.norm")
        return attention(ops, "adapter", shape, x, read, attend, self.exit)
