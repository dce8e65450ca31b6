"""CTC loss of a slot drafter (Graves et al. 2006)."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor
from torch.nn import functional

from paceline.training.batches import Batch
from paceline.training.losses import weighted_mean
from paceline.training.objective import labels, wanted, wide


def ctc_loss(
    slots: Sequence[Tensor], batch: Batch, places: Tensor, tokens: int, prompt_weight: float
) -> Tensor:
    """Return the CTC loss of the next `tokens` tokens, per token in nats (Graves et al. 2006).

    `slots` are per slot `[texts, time, draft vocabulary + 1]` logits, blank last. Only positions
    whose next tokens are in the text, in the draft vocabulary and alignable count.
    """
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
