"""CTC drafter: slots that may stay blank (Wen et al. 2024).

More slots than tokens are drafted at once. A slot may repeat its neighbour or stay blank;
`collapse` makes tokens of slots, and the loss sums over all ways to write the same tokens, so that
no slot has to guess its place. Blank is a logit of its own behind those of the draft vocabulary,
from one row that is trained; the target's LM head stays as it is.

A decoder layer reads the context, root included, and a second one, over the slots, lets them see
one another both ways. The published drafter also regresses hidden states; this one reads features
of several layers instead, as EAGLE-3 does.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar

from paceline.networks.base import Geometry, Network, Shapes
from paceline.networks.blocks import among_slots
from paceline.networks.ops import Ops, Rows
from paceline.networks.slots import slot_shapes, slots_behind
from paceline.options import require


def collapse(slots: Sequence[int], blank: int) -> list[int]:
    """Indices of the slots that stand for tokens: the first of every run that is not blank.

    Args:
        slots: what each slot says.
        blank: what stands for nothing. Equal tokens with a blank between them are two.
    """
    before = [blank, *slots]
    return [i for i, token in enumerate(slots) if token != blank and token != before[i]]


class CTC(Network):
    """Drafts up to `width` tokens in one pass over the slots."""

    name: ClassVar[str] = "ctc"
    layers: ClassVar[int] = 1
    blank: ClassVar[bool] = True

    def __init__(
        self, geometry: Geometry, *, width: int = 6, tokens: int = 3, ffn_size: int = 0
    ) -> None:
        """Size the network.

        Args:
            geometry: of the target.
            width: slots.
            tokens: how many the slots are trained to say; 1 to `width`.
            ffn_size: of both layers; 0 takes the target's own.

        Raises:
            InvalidOption: a size is out of range.
        """
        super().__init__(geometry, steps=1, width=width)
        require(1 <= tokens <= width, "tokens", tokens, f"1 to {width}, the slots")
        self.tokens = tokens
        self.ffn_size = ffn_size or geometry.ffn_size

    def settings(self) -> dict[str, Any]:
        """All sizes."""
        return {"width": self.width, "tokens": self.tokens, "ffn_size": self.ffn_size}

    def shapes(self) -> Shapes:
        """Fusion, the context's layer, slots and their layer, blank."""
        shapes = slot_shapes(self.geometry, self.width, self.ffn_size)
        return {**shapes, "blank": (1, self.geometry.width)}

    def start(self, ops: Ops, features: Rows, tokens: Rows) -> Rows:
        """The context layer, then the slots behind each context row."""
        attend = among_slots(ops)
        return slots_behind(ops, self.geometry, self.ffn_size, features, tokens, attend)

    def logits(self, ops: Ops, state: Rows, step: int) -> Rows:
        """By the target's LM head, after a norm, and of blank behind them."""
        x = ops.norm(state, "norm")
        return ops.concat([ops.head(x), ops.linear(x, "blank")])
