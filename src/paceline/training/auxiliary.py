"""Losses that some networks have beside that on tokens, or in its place."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor
from torch.nn import functional

from paceline.networks.base import Network
from paceline.training.batches import Batch
from paceline.training.logits import weighted_mean
from paceline.training.losses import Loss
from paceline.training.module import Drafts
from paceline.training.objective import labels, total_loss, wanted


def network_loss(
    network: Network,
    drafts: Drafts,
    features: Tensor,
    teacher: Tensor,
    batch: Batch,
    places: Tensor,
    loss: Loss,
    *,
    decay: float,
    prompt_weight: float,
    feature_weight: float = 1.0,
) -> Tensor:
    """All that a network is trained for.

    Slots that may stay blank are trained by `ctc_loss` alone, all others by `total_loss`: its mean
    over all exits (S2D), and `feature_weight` times `feature_loss` if the network foretells hidden
    states (EAGLE weighs that ten times the loss on tokens).

    Args:
        network: what drafted.
        drafts: by `DraftModule.draft`.
        features: `[texts, time, 4 * width]` of the batch.
        teacher: as for `total_loss`, and all that follow.
        batch: the texts.
        places: draft indices of tokens.
        loss: of one depth.
        decay: weight of a depth beside the one above.
        prompt_weight: weight of prompt tokens.
        feature_weight: of the loss on hidden states.
    """
    if network.blank:
        return ctc_loss(drafts.logits, batch, places, network.tokens, prompt_weight)
    exits = [
        total_loss(
            each,
            teacher,
            batch,
            places,
            loss,
            decay=decay,
            prompt_weight=prompt_weight,
        )
        for each in (drafts.logits, *drafts.exits)
    ]
    out = torch.stack(exits).mean()
    if drafts.features and feature_weight:
        out = out + feature_weight * feature_loss(drafts.features, features, batch, prompt_weight)
    return out


def feature_loss(
    foretold: Sequence[Tensor], features: Tensor, batch: Batch, prompt_weight: float
) -> Tensor:
    """How far hidden states are from what they foretell: the mean of a smooth L1 (EAGLE).

    Axes differ by a factor of hundreds, so each is measured by its root mean square in the batch.

    Args:
        foretold: per depth, `[texts, time, width]`.
        features: `[texts, time, 4 * width]`; hidden states are their last part.
        batch: the texts.
        prompt_weight: as for `wanted`.
    """
    hidden = features[..., -foretold[0].shape[-1] :]
    spread = hidden.square().mean((0, 1)).sqrt().clamp_min(1e-3)
    values, weights = [], []
    for index, each in enumerate(foretold):
        depth = index + 1
        counts = wanted(batch, depth, prompt_weight).to(each.device)
        rows = counts > 0
        shifted = torch.cat([hidden[:, depth:], hidden[:, :depth]], dim=1)  # the tail counts 0
        error = functional.smooth_l1_loss(
            _wide(each[rows]) / spread, shifted[rows] / spread, reduction="none"
        )
        values.append(error.mean(-1))
        weights.append(counts[rows])
    return weighted_mean(torch.cat(values), torch.cat(weights))


def ctc_loss(
    slots: Sequence[Tensor], batch: Batch, places: Tensor, tokens: int, prompt_weight: float
) -> Tensor:
    """-log of the chance that the slots say the next tokens, in any of the ways to write them.

    Per token, in nats (Graves et al. 2006). Positions count whose next tokens are all in the text
    and in the draft vocabulary, and can be written in so many slots.

    Args:
        slots: per slot, `[texts, time, draft vocabulary + 1]` logits, blank last.
        batch: the texts.
        places: draft indices of tokens.
        tokens: how many the slots shall say.
        prompt_weight: as for `wanted`.
    """
    depths = range(1, tokens + 1)
    says = torch.stack([labels(batch, places, depth) for depth in depths], dim=-1)
    counts = wanted(batch, tokens, prompt_weight).to(says.device)
    repeats = (says[..., 1:] == says[..., :-1]).sum(-1)  # each takes a blank in between
    rows = (counts > 0) & (says >= 0).all(-1) & (tokens + repeats <= len(slots))
    if not rows.any():
        return slots[0].sum() * 0
    chances = torch.stack([_wide(each[rows]).log_softmax(-1) for each in slots])
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


def likeliest_tokens(network: Network, drafted: Sequence[Tensor]) -> list[Tensor]:
    """Per depth, int64 `[texts, time]` draft indices of greedy drafts; -2 where there is none.

    Slots that may stay blank are collapsed as `networks.ctc.collapse` does.
    """
    best = torch.stack([logits.argmax(-1) for logits in drafted], dim=-1)
    if network.blank:
        blank = drafted[0].shape[-1] - 1
        before = functional.pad(best[..., :-1], (1, 0), value=blank)
        kept = (best != blank) & (best != before)
        packed = best.masked_fill(~kept, -2)
        first = (~kept).to(torch.int8).argsort(dim=-1, stable=True)
        best = packed.gather(-1, first)
    return list(best.unbind(-1))


def _wide(x: Tensor) -> Tensor:
    """Float32, unless it is wider."""
    return x.to(torch.promote_types(x.dtype, torch.float32))
