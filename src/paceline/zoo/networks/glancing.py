"""Coupled sequential glancing distillation (Falcon, arXiv:2412.12639; Qian et al. 2021).

For a block drafter: a share of the slots with a wrong argmax gets the true hidden state before the
next block is drafted. The share falls as training goes on. Unlike the paper, tokens fed to a block
are always true, so no first pass is needed. Training hits are inflated; held-out ones never glance.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from paceline.networks.base import Network
from paceline.networks.torch_ops import TorchOps
from paceline.training.batches import Batch
from paceline.training.objective import labels, wanted

# Share of wrong slots that is corrected at the start and at the end of training (the paper's).
_FIRST, _LAST = 0.45, 0.1


@dataclass(frozen=True, slots=True)
class Glance:
    """Correct states of one batch; a `Reveal` for `DraftModule.unroll`.

    Attributes:
        places: int64 `[vocabulary]`, draft index of each token, or -1.
        share: of every text's wrong slots, per step, in [0, 1].
        generator: on the CPU.
    """

    network: Network
    batch: Batch
    places: Tensor
    share: float
    generator: torch.Generator

    def __call__(self, ops: TorchOps, state: Tensor, step: int) -> Tensor:
        with torch.no_grad():
            says = self.network.logits(ops, state, step).argmax(-1)
        slots, width = state.shape[-2:]
        depths = range(step * slots + 1, (step + 1) * slots + 1)
        right = torch.stack([labels(self.batch, self.places, each) for each in depths], dim=-1)
        known = torch.stack([wanted(self.batch, each, 1.0) > 0 for each in depths], dim=-1)
        wrong = (says != right).cpu() & known
        hidden = torch.from_numpy(self.batch.features[..., -width:]).to(state)
        true = torch.stack([hidden.roll(-each, dims=1) for each in depths], dim=-2)
        shown = some(wrong, self.share, self.generator).to(state.device)
        return torch.where(shown[..., None], true, state)


def glance(
    network: Network, batch: Batch, places: Tensor, progress: float, seed: Sequence[int]
) -> Glance:
    """Return the `Glance` at `progress` (0 to 1) of a run."""
    share = _LAST + (_FIRST - _LAST) * (1 - progress)
    number = int(np.random.SeedSequence(seed).generate_state(1)[0])
    return Glance(network, batch, places, share, torch.Generator().manual_seed(number))


def some(wrong: Tensor, share: float, generator: torch.Generator) -> Tensor:
    # Bool `[texts, time, slots]`: a random `share` of every text's wrong slots, rounded.
    flat = wrong.flatten(1)
    draws = torch.rand(flat.shape, generator=generator).masked_fill(~flat, 2.0)
    counts = (share * flat.sum(1)).round()
    return (draws.argsort(1).argsort(1) < counts[:, None]).view_as(wrong)
