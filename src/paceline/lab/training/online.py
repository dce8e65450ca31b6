"""Online speculative decoding: distillation while serving (Liu et al. 2024, arXiv:2310.07177).

The target's distribution where a draft failed is a free teacher for a small update.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import torch

from paceline.core import processor
from paceline.core.types import LogitArray
from paceline.drafters.network.online import Example
from paceline.lab.training.batches import Batch, padded
from paceline.lab.training.losses import find_loss
from paceline.lab.training.module import restore_module
from paceline.lab.training.objective import forward
from paceline.lab.training.optimisers import optimisers, update
from paceline.lab.training.vocabulary import DraftVocabulary
from paceline.models.source import ModelSource
from paceline.networks.weights import Trained

# Token limit of an update's batch.
_BATCH_TOKENS = 1024

# Weight of tokens that were drafted right, against forgetting.
_ELSEWHERE = 0.1

# Learning rate of norms and scales, relative to that of matrices.
_VECTOR_RATE = 0.1

_CLIP = 1.0
_DECAY = 0.8


class OnlineLearner:
    """Update a network's parameters from examples; a `drafters.network.online.Learner`.

    Args: `rate` is the constant learning rate of matrices, `loss` as for `losses.find_loss`.

    Raises:
        InvalidOption: the loss is unknown.
        ModelError: the target's weights are missing or damaged.
    """

    def __init__(
        self, trained: Trained, source: ModelSource, *, rate: float, loss: str = "forward-kl"
    ) -> None:
        self._module = restore_module(trained, source)
        vocabulary = DraftVocabulary(trained.draft_ids, source.config.vocab_size, 1.0)
        self._places = torch.from_numpy(vocabulary.labels(np.arange(vocabulary.size)))
        self._loss = find_loss(loss)
        self._rates = rate, rate * _VECTOR_RATE
        self._optimisers = optimisers(self._module.named(), *self._rates)

    def learn(self, examples: Sequence[Example]) -> dict[str, LogitArray] | None:
        """Make one pass over examples; return the new float32 parameters.

        None if a loss or parameter is not finite: the pass is undone and optimiser state is reset.
        """
        named = self._module.named()
        before = {name: each.detach().clone() for name, each in named.items()}
        finite = all(self._step(batch) for batch in _batches(examples))
        if not finite or not all(bool(each.isfinite().all()) for each in named.values()):
            self._module.load(before)
            self._optimisers = optimisers(self._module.named(), *self._rates)
            return None
        return {name: each.detach().numpy().copy() for name, each in named.items()}

    def _step(self, batch: Batch) -> bool:
        # False if the loss is not finite; then no step was made.
        _, loss = forward(
            self._module,
            batch,
            self._places,
            self._loss,
            decay=_DECAY,
            prompt_weight=0.0,
            feature_weight=1.0,
            half=processor.multiplies_bf16(),
        )
        if not math.isfinite(float(loss.detach())):
            return False
        update(self._module.parameters(), self._optimisers, loss, _CLIP)
        return True


def _batches(examples: Sequence[Example]) -> list[Batch]:
    groups: list[list[Example]] = [[]]
    for example in sorted(examples, key=lambda each: len(each.tokens)):
        if groups[-1] and len(example.tokens) * (len(groups[-1]) + 1) > _BATCH_TOKENS:
            groups.append([])
        groups[-1].append(example)
    return [_batch(group) for group in groups]


def _batch(examples: Sequence[Example]) -> Batch:
    counts = [np.where(each.missed, 1.0, _ELSEWHERE).astype(np.float32) for each in examples]
    return Batch(
        padded([each.features for each in examples]),
        padded([each.tokens for each in examples]),
        np.array([len(each.tokens) for each in examples], dtype=np.int64),
        np.zeros(len(examples), dtype=np.int64),
        padded(counts),
    )
