"""Coupled sequential glancing distillation (Falcon, arXiv:2412.12639; Qian et al. 2021).

Two passes per batch. The first drafts the text in blocks, side by side; its Hamming distance to the
text, times a share that falls as training goes on, is how many rows the second pass may glance at:
these read hidden state and token of `width` places on, what a row of a block is to predict, so that
its neighbours in the block see them. Training hits are inflated; held-out ones never glance.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from paceline.lab.training.batches import Batch
from paceline.lab.training.module import DraftModule, ahead
from paceline.lab.training.objective import labels, wanted

# Share of the Hamming distance that is shown at the start and at the end of training (the paper's).
_FIRST, _LAST = 0.45, 0.1


@dataclass(frozen=True, slots=True)
class Glance:
    """Show answers to rows of one batch; a `training.module.Reveal`.

    Attributes:
        width: rows of a block.
        places: int64 `[vocabulary]`, draft index of each token, or -1.
        share: of every text's Hamming distance, in [0, 1].
        generator: on the CPU.
    """

    width: int
    batch: Batch
    places: Tensor
    share: float
    generator: torch.Generator

    def __call__(
        self, module: DraftModule, features: Tensor, tokens: Tensor
    ) -> tuple[Tensor, Tensor]:
        depths, ends = range(1, self.width + 1), slice(self.width - 1, None, self.width)
        with torch.no_grad():
            step = next(module.unroll(features, tokens, lambda _: tokens))
            says = module.network.logits(*step).argmax(-1)[:, ends]
        right = torch.stack([labels(self.batch, self.places, each) for each in depths], dim=-1)
        known = torch.stack([wanted(self.batch, each, 1.0) > 0 for each in depths], dim=-1)[:, ends]
        distance = ((says != right[:, ends]).cpu() & known).flatten(1).sum(1)
        # The first row of a block, as far as the whole block is inside the text.
        shown = torch.zeros(tokens.shape, dtype=torch.bool)
        blocks = known.shape[1]
        counts = (self.share * distance).round()
        shown[:, : blocks * self.width : self.width] = some(known.all(-1), counts, self.generator)
        shown = shown.to(tokens.device)
        hidden = module.network.config.hidden_size
        following = ahead(tokens, 1)
        answers = ahead(features[..., -hidden:], self.width), ahead(following, self.width)
        mixed = torch.where(shown[..., None], answers[0], features[..., -hidden:])
        read = torch.cat([features[..., :-hidden], mixed], dim=-1)
        return read, torch.where(shown, answers[1], following)


def glance(
    width: int, batch: Batch, places: Tensor, progress: float, seed: Sequence[int]
) -> Glance:
    """Return the `Glance` at `progress` (0 to 1) of a run."""
    share = _LAST + (_FIRST - _LAST) * (1 - progress)
    number = int(np.random.SeedSequence(seed).generate_state(1)[0])
    return Glance(width, batch, places, share, torch.Generator().manual_seed(number))


def some(known: Tensor, counts: Tensor, generator: torch.Generator) -> Tensor:
    # Bool `[texts, blocks]`: of each text so many at random, or all that are known.
    draws = torch.rand(known.shape, generator=generator).masked_fill(~known, 2.0)
    return (draws.argsort(1).argsort(1) < counts[:, None]) & known
