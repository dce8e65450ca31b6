"""A network run over a batch, and what that costs it."""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import Tensor

from paceline.training.auxiliary import network_loss
from paceline.training.batches import Batch
from paceline.training.losses import Loss
from paceline.training.module import DraftModule, Drafts, Reveal


def forward(
    module: DraftModule,
    batch: Batch,
    places: Tensor,
    loss: Loss,
    *,
    decay: float,
    prompt_weight: float,
    feature_weight: float,
    half: bool,
    reveal: Reveal | None = None,
) -> tuple[Drafts, Tensor]:
    """Drafts behind every position, given the true tokens, and their loss.

    Args:
        module: the network.
        batch: texts with features.
        places: int64 `[vocabulary]`, draft index of each token, or -1.
        loss: of one depth.
        decay: as for `network_loss`, like the two that follow.
        prompt_weight: of prompt tokens.
        feature_weight: of the loss on hidden states.
        half: whether matrix products run in bfloat16.
        reveal: as for `DraftModule.unroll`.

    Returns:
        The drafts, and a scalar.
    """
    features = torch.from_numpy(batch.features).to(places.device)
    tokens = torch.from_numpy(batch.tokens).to(places.device)
    with torch.autocast(places.device.type, dtype=torch.bfloat16, enabled=half):
        drafts = module.draft(features, tokens, reveal)
        with torch.no_grad():
            teacher = module.teacher(features)
    trained = drafts
    if not module.network.reads_features:  # deeper drafts are the same ones, further on
        trained = replace(drafts, logits=drafts.logits[:1])
    cost = network_loss(
        module.network,
        trained,
        features,
        teacher.float(),
        batch,
        places,
        loss,
        decay=decay,
        prompt_weight=prompt_weight,
        feature_weight=feature_weight,
    )
    return drafts, cost
