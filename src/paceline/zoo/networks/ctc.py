"""CTC drafter: parallel slots with blanks, collapsed to tokens (Wen et al. 2024).

The loss sums over all alignments of the same tokens. Blank is one trained logit after the draft
vocabulary. The paper also regresses hidden states; here features of several layers are read.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from torch import Tensor

    from paceline.training.batches import Batch

from collections.abc import Sequence
from typing import Any, ClassVar

from paceline.core.options import require
from paceline.drafters.network.drafter import TrainedDrafter
from paceline.networks.base import Geometry, Network, Shapes
from paceline.networks.blocks import slot_shapes, slots_behind
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
        return slots_behind(ops, features, tokens, "slots")

    def logits(self, ops: Ops, state: Rows, step: int) -> Rows:
        head = ops.head(state, norm="norm")
        return ops.concat([head, ops.linear(state, "blank", norm="norm")])

    def own_loss(self, logits: Any, batch: Any, places: Any, prompt_weight: float) -> Any:
        return ctc_loss(logits, batch, places, self.tokens, prompt_weight)

    def collapse(self, slots: Sequence[int]) -> Sequence[int]:
        return collapse(slots, -1)


class CTCDrafter(TrainedDrafter):
    """CTC drafter: slots that may stay blank."""

    name: ClassVar[str] = "ctc"


def ctc_loss(
    slots: Sequence[Tensor], batch: Batch, places: Tensor, tokens: int, prompt_weight: float
) -> Tensor:
    """Return the CTC loss of the next `tokens` tokens, per token in nats (Graves et al. 2006).

    `slots` are per slot `[texts, time, draft vocabulary + 1]` logits, blank last. Only positions
    whose next tokens are in the text, in the draft vocabulary and alignable count.
    """
    import torch
    from torch.nn import functional

    from paceline.training.losses import weighted_mean
    from paceline.training.objective import labels, wanted, wide

    depths = range(1, tokens + 1)
    says = torch.stack([labels(batch, places, depth) for depth in depths], dim=-1)
    counts = wanted(batch, tokens, prompt_weight).to(says.device)
    repeats = (says[..., 1:] == says[..., :-1]).sum(-1)  # each takes a blank in between
    rows = (counts > 0) & (says >= 0).all(-1) & (tokens + repeats <= len(slots))
    if not rows.any():
        return slots[0].sum() * 0
    chances = torch.stack([wide(each[rows]).log_softmax(-1) for each in slots])
    count = int(rows.sum())
    losses = functional.ctc_loss(
        chances,
        says[rows],
        torch.full((count,), len(slots)),
        torch.full((count,), tokens),
        blank=chances.shape[-1] - 1,
        reduction="none",
    )
    return weighted_mean(losses / tokens, counts[rows])
