"""CTC drafter: parallel slots with blanks, collapsed to tokens (Wen et al. 2024).

The loss sums over all alignments of the same tokens. Blank is one trained logit after the draft
vocabulary. The paper also regresses hidden states; here features of several layers are read.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar

from paceline.core.options import require
from paceline.drafters.network.drafter import TrainedDrafter
from paceline.networks.base import Geometry, Network, Shapes
from paceline.networks.blocks import among_slots, slot_shapes, slots_behind
from paceline.networks.ops import Ops, Rows


def collapse(slots: Sequence[int], blank: int) -> list[int]:
    """Return the indices of slots that stand for tokens: the first of every run that is not blank.

    Equal tokens with a blank between them are two tokens.
    """
    before = [blank, *slots]
    return [i for i, token in enumerate(slots) if token != blank and token != before[i]]


class CTC(Network):
    """Draft up to `width` tokens in one pass over the slots."""

    name: ClassVar[str] = "ctc"
    layers: ClassVar[int] = 1
    blank: ClassVar[bool] = True

    def __init__(
        self, geometry: Geometry, *, width: int = 6, tokens: int = 3, ffn_size: int = 0
    ) -> None:
        """Size the network: `width` slots, trained on `tokens` tokens (1 to `width`).

        Raises:
            InvalidOption: a size is out of range.
        """
        super().__init__(geometry, steps=1, width=width)
        require(1 <= tokens <= width, "tokens", tokens, f"1 to {width}, the slots")
        self.tokens = tokens
        self.ffn_size = ffn_size or geometry.ffn_size

    def settings(self) -> dict[str, Any]:
        return {"width": self.width, "tokens": self.tokens, "ffn_size": self.ffn_size}

    def shapes(self) -> Shapes:
        shapes = slot_shapes(self.geometry, self.width, self.ffn_size)
        return {**shapes, "blank": (1, self.geometry.width)}

    def start(self, ops: Ops, features: Rows, tokens: Rows) -> Rows:
        attend = among_slots(ops)
        return slots_behind(ops, self.geometry, self.ffn_size, features, tokens, attend)

    def logits(self, ops: Ops, state: Rows, step: int) -> Rows:
        x = ops.norm(state, "norm")
        return ops.concat([ops.head(x), ops.linear(x, "blank")])

    def own_loss(self, logits: Any, batch: Any, places: Any, prompt_weight: float) -> Any:
        from paceline.zoo.networks.ctc_loss import ctc_loss  # imports torch

        return ctc_loss(logits, batch, places, self.tokens, prompt_weight)

    def collapse(self, slots: Sequence[int]) -> Sequence[int]:
        return collapse(slots, -1)


class CTCDrafter(TrainedDrafter):
    """CTC drafter: slots that may stay blank."""

    name: ClassVar[str] = "ctc"
