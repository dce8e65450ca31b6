"""Optimisers: Muon for matrices, AdamW for all else, and one update."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence

import torch
from torch import Tensor
from torch.optim import Optimizer

from paceline.core import processor

# Optimiser and its peak learning rate.
Rated = tuple[Optimizer, float]


# Coefficients and steps of the Newton-Schulz iteration (Jordan et al. 2024).
_QUINTIC, _ITERATIONS = (3.4445, -4.7750, 2.0315), 5


class Muon(Optimizer):
    """Orthogonalised momentum for matrices (Jordan et al. 2024).

    That of PyTorch iterates in bfloat16, which processors without its instructions emulate, many
    times slower: there this one iterates in float32.
    """

    def __init__(self, matrices: Iterable[Tensor], lr: float, momentum: float = 0.95) -> None:
        super().__init__(matrices, {"lr": lr, "momentum": momentum})

    @torch.no_grad()
    def step(self) -> None:  # type: ignore[override]
        for group in self.param_groups:
            for matrix in group["params"]:
                if matrix.grad is None:
                    continue
                state = self.state[matrix]
                if not state:
                    state["momentum_buffer"] = torch.zeros_like(matrix)
                mean = state["momentum_buffer"].lerp_(matrix.grad, 1 - group["momentum"])
                found = _orthogonal(matrix.grad.lerp(mean, group["momentum"]))
                spread = math.sqrt(max(1.0, matrix.shape[0] / matrix.shape[1]))
                matrix.add_(found, alpha=-group["lr"] * spread)


def _orthogonal(matrix: Tensor) -> Tensor:
    half = matrix.is_cuda or processor.multiplies_bf16()
    x = matrix.to(torch.bfloat16 if half else torch.float32)
    tall = len(x) > x.shape[1]
    x = x.T if tall else x
    x = x / x.norm().clamp(min=1e-7)
    a, b, c = _QUINTIC
    for _ in range(_ITERATIONS):
        gram = x @ x.T
        x = torch.addmm(x, torch.addmm(gram, gram, gram, beta=b, alpha=c), x, beta=a)
    return (x.T if tall else x).to(matrix.dtype)


_TABLES = ("embed", "slots", "blank")
"""Matrices that are tables of vectors."""


def adam(
    parameters: Iterable[Tensor], rate: float, betas: tuple[float, float] = (0.9, 0.95)
) -> Rated:
    return torch.optim.AdamW(parameters, lr=rate, betas=betas, weight_decay=0.0), rate


def optimisers(
    named: Mapping[str, Tensor],
    matrix_rate: float,
    vector_rate: float,
    betas: tuple[float, float] = (0.9, 0.95),
) -> list[Rated]:
    """Build Muon for matrices and AdamW for all other parameters, if there are any."""
    matrices = [each for name, each in named.items() if each.ndim == 2 and name not in _TABLES]
    others = [each for name, each in named.items() if each.ndim != 2 or name in _TABLES]
    out: list[Rated] = [(Muon(matrices, matrix_rate), matrix_rate)] if matrices else []
    return [*out, adam(others, vector_rate, betas)] if others else out


def update(
    parameters: Iterable[Tensor], rated: Sequence[Rated], loss: Tensor, clip: float | None
) -> None:
    """Make one optimiser step on a finite scalar loss; `clip` is the gradient norm limit."""
    for optimiser, _ in rated:
        optimiser.zero_grad(set_to_none=True)
    loss.backward()  # type: ignore[no-untyped-call]
    if clip is not None:
        torch.nn.utils.clip_grad_norm_(parameters, clip)
    for optimiser, _ in rated:
        optimiser.step()
