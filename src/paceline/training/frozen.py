"""A network that was trained, in PyTorch again."""

from __future__ import annotations

import numpy as np
import torch

from paceline.models.source import ModelSource
from paceline.networks.weights import Trained
from paceline.training.borrowing import borrow
from paceline.training.module import DraftModule


def module_of(trained: Trained, source: ModelSource) -> DraftModule:
    """The module with its weights.

    Args:
        trained: network and weights.
        source: the target that it was trained for.

    Raises:
        ModelError: the target's weights are missing or damaged.
    """
    config, weights = source.config, source.weights()
    embedding = weights["model.embed_tokens.weight"]
    head = embedding if config.tied_embeddings else weights["lm_head.weight"]
    lent = borrow(trained.network, config, weights)
    module = DraftModule(
        trained.network,
        torch.from_numpy(embedding),
        torch.from_numpy(np.ascontiguousarray(head[trained.draft_ids])),
        torch.Generator(),
        {name: torch.from_numpy(np.ascontiguousarray(each)) for name, each in lent.items()},
    )
    module.load({name: torch.tensor(each) for name, each in trained.parameters.items()})
    return module
