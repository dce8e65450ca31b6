"""What turns gradients of a drafter network into updates."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor
from torch.optim import Optimizer

from paceline.training.module import DraftModule

Rated = tuple[Optimizer, float]
"""An optimiser and its highest learning rate."""


def optimisers(module: DraftModule, matrix_rate: float, vector_rate: float) -> list[Rated]:
    """Muon for matrices (Jordan et al. 2024), AdamW for everything else; each with its rate.

    Args:
        module: what is trained.
        matrix_rate: learning rate of the first, to begin with.
        vector_rate: of the second, which is left out where the network has matrices alone.
    """
    matrices: list[Tensor] = []
    others: list[Tensor] = []
    for name, parameter in module.named().items():
        is_matrix = parameter.ndim == 2 and name not in ("slots", "blank")
        (matrices if is_matrix else others).append(parameter)
    out: list[Rated] = []
    if matrices:
        muon = torch.optim.Muon(matrices, lr=matrix_rate, momentum=0.95, weight_decay=0.0)
        out.append((muon, matrix_rate))
    if others:
        betas = (0.9, 0.95)
        adam = torch.optim.AdamW(others, lr=vector_rate, betas=betas, weight_decay=0.0)
        out.append((adam, vector_rate))
    return out


def update(module: DraftModule, rated: Sequence[Rated], loss: Tensor, clip: float) -> None:
    """One step down a loss.

    Args:
        module: what is trained.
        rated: optimisers of its parameters.
        loss: a finite scalar.
        clip: longest gradient.
    """
    for optimiser, _ in rated:
        optimiser.zero_grad(set_to_none=True)
    loss.backward()  # type: ignore[no-untyped-call]
    torch.nn.utils.clip_grad_norm_(module.parameters(), clip)
    for optimiser, _ in rated:
        optimiser.step()
