"""A small stand-alone language model (FastDraft, Zafrir et al. 2024, arXiv:2411.11055).

It reads tokens alone, over the target's embedding and LM head, which are frozen, and is otherwise
a Llama of few layers: with both matrices beside its own it is a model that any engine loads.
Trained first on text by cross-entropy, then on text of the target by a divergence.
"""

from __future__ import annotations

from typing import Any, ClassVar

from paceline.networks.base import Geometry, Network, Shapes
from paceline.networks.blocks import Attend
from paceline.networks.llama_layers import stack, stack_shapes
from paceline.networks.ops import Ops, Rows
from paceline.options import require


class DraftLM(Network):
    """Drafts one token per pass of its layers."""

    name: ClassVar[str] = "draft-lm"
    reads_features: ClassVar[bool] = False

    def __init__(
        self, geometry: Geometry, *, steps: int = 5, layers: int = 2, ffn_size: int = 0
    ) -> None:
        """Size the network.

        Args:
            geometry: of the target.
            steps: most tokens of one draft; training does not depend on it.
            layers: decoder layers.
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
        """The layers and the final norm."""
        layers = stack_shapes("layer", self.geometry, self.layers, self.ffn_size)
        return {**layers, "norm": (self.geometry.width,)}

    def start(self, ops: Ops, features: Rows, tokens: Rows) -> Rows:
        """All layers over the text."""
        return ops.last(self._layers(ops, tokens, ops.attend_context))

    def logits(self, ops: Ops, state: Rows, step: int) -> Rows:
        """By the target's LM head, after the final norm."""
        return ops.head(ops.norm(state, "norm"))

    def advance(self, ops: Ops, state: Rows, tokens: Rows, step: int) -> Rows:
        """All layers over one more token."""
        return self._layers(ops, tokens, ops.attend_draft)

    def _layers(self, ops: Ops, tokens: Rows, attend: Attend) -> Rows:
        x = ops.embed(tokens)
        return stack(ops, "layer", self.geometry, self.layers, self.ffn_size, x, attend)
