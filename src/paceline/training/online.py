"""Learning while serving: the target corrects the drafter, and the drafter learns from it.

Online speculative decoding (Liu et al. 2024, arXiv:2310.07177): where a draft missed what the
target wrote, the target's law there is at hand for nothing, and a small step of distillation moves
the drafter towards it.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import torch

from paceline.drafters.online_examples import Example
from paceline.models.source import ModelSource
from paceline.networks.weights import Trained
from paceline.training.batches import Batch, padded
from paceline.training.forward import forward
from paceline.training.frozen import module_of
from paceline.training.fused_losses import fused
from paceline.training.losses import find_loss
from paceline.training.optimisers import optimisers, update
from paceline.training.vocabulary import DraftVocabulary
from paceline.types import LogitArray

_BATCH_TOKENS = 1024
"""Most tokens of an update's step."""

_ELSEWHERE = 0.1
"""Weight of tokens that were not missed, so that what is right stays right."""

_VECTOR_RATE = 0.1
"""Learning rate of norms and scales beside that of matrices."""

_CLIP = 1.0
_DECAY = 0.8


class OnlineLearner:
    """A network's parameters, moved a little by examples. Implements `drafters.online.Learner`."""

    def __init__(
        self, trained: Trained, source: ModelSource, *, rate: float, loss: str = "forward-kl"
    ) -> None:
        """Begin where the weights are.

        Args:
            trained: the network and its weights.
            source: the target.
            rate: learning rate of matrices, constant.
            loss: as for `losses.find_loss`.

        Raises:
            InvalidOption: there is no such loss.
            ModelError: the target's weights are missing or damaged.
        """
        self._module = module_of(trained, source)
        vocabulary = DraftVocabulary(trained.draft_ids, source.config.vocab_size, 1.0)
        self._places = torch.from_numpy(vocabulary.labels(np.arange(vocabulary.size)))
        self._loss = fused(find_loss(loss))
        self._rates = rate, rate * _VECTOR_RATE
        self._optimisers = optimisers(self._module, *self._rates)

    def learn(self, examples: Sequence[Example]) -> dict[str, LogitArray] | None:
        """One pass over examples.

        Args:
            examples: at least one.

        Returns:
            The new parameters, float32; None if a loss or a parameter became no number: then the
            pass is undone, and what the optimisers knew is forgotten.
        """
        named = self._module.named()
        before = {name: each.detach().clone() for name, each in named.items()}
        finite = all(self._step(batch) for batch in _batches(examples))
        if not finite or not all(bool(each.isfinite().all()) for each in named.values()):
            self._module.load(before)
            self._optimisers = optimisers(self._module, *self._rates)
            return None
        return {name: each.detach().numpy().copy() for name, each in named.items()}

    def _step(self, batch: Batch) -> bool:
        """Whether the loss was a number, and the step was made."""
        _, loss = forward(
            self._module,
            batch,
            self._places,
            self._loss,
            decay=_DECAY,
            prompt_weight=0.0,
            feature_weight=1.0,
            half=True,
        )
        if not math.isfinite(float(loss.detach())):
            return False
        update(self._module, self._optimisers, loss, _CLIP)
        return True


def _batches(examples: Sequence[Example]) -> list[Batch]:
    """Examples of about the same length side by side."""
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
