"""Glancing at the truth: what a drafter got wrong in one block is partly put right for the next.

Coupled sequential glancing distillation (Falcon, Gao et al. 2024, arXiv:2412.12639; glancing is
from Qian et al. 2021). A network that drafts a block at a time reads the blocks that it drafted
before. Early in training most of that is wrong, and there is little to learn from it. So of the
slots whose likeliest token is wrong, a share gets its true hidden state before the next block is
drafted: many slots while the network knows little, fewer as it is right more often, and a smaller
share of them as training goes on. The loss still meets what the network itself foretold.

The paper puts tokens right along with hidden states, and drafts everything a first time to see what
is wrong. Here the tokens that a block takes in are the true ones in all of training, and each block
is drafted knowing those before it, so its own logits tell.

Figures of the run count these drafts, too, which flatters; those on held-out text never glance.
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

_FIRST, _LAST = 0.45, 0.1
"""Share of the wrong slots that is put right as training begins, and as it ends (the paper's)."""


@dataclass(frozen=True, slots=True)
class Glance:
    """Puts states of one batch right, as `DraftModule.unroll` asks for it.

    Attributes:
        network: what drafts; its states are foretold hidden states.
        batch: the texts.
        places: int64 `[vocabulary]`, draft index of each token, or -1.
        share: of every text's wrong slots, in each step; 0 to 1.
        generator: draws which of them; on the CPU.
    """

    network: Network
    batch: Batch
    places: Tensor
    share: float
    generator: torch.Generator

    def __call__(self, ops: TorchOps, state: Tensor, step: int) -> Tensor:
        """`[texts, time, slots, width]`, the state that the next step starts from."""
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
) -> Glance | None:
    """At a point of a run; None for networks that are trained without.

    Args:
        network: what drafts.
        batch: the texts.
        places: as of `Glance`.
        progress: 0 where training begins, 1 where it ends.
        seed: of the draws, so that those of an update are the same whenever it is made.
    """
    if not network.glances:
        return None
    share = _LAST + (_FIRST - _LAST) * (1 - progress)
    number = int(np.random.SeedSequence(seed).generate_state(1)[0])
    return Glance(network, batch, places, share, torch.Generator().manual_seed(number))


def some(wrong: Tensor, share: float, generator: torch.Generator) -> Tensor:
    """Bool `[texts, time, slots]`: of every text's wrong slots that share, rounded, at random."""
    flat = wrong.flatten(1)
    draws = torch.rand(flat.shape, generator=generator).masked_fill(~flat, 2.0)
    counts = (share * flat.sum(1)).round()
    return (draws.argsort(1).argsort(1) < counts[:, None]).view_as(wrong)
