"""An optimiser's state as plain values and named tensors, and back."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

Group = dict[str, Any]
"""Settings of some parameters, which stand under "params" by name."""


def groups_of(model: nn.Module, optimiser: Optimizer) -> list[Group]:
    """The groups of an optimiser of (some of) a model's parameters."""
    names = {id(p): name for name, p in model.named_parameters()}
    return [
        {**group, "params": [names[id(p)] for p in group["params"]]}
        for group in optimiser.param_groups
    ]


def moments_of(optimiser: Optimizer, groups: list[Group]) -> dict[str, Tensor]:
    """What is kept for each parameter, under `key.parameter`: steps and moments of AdamW."""
    kept = optimiser.state_dict()["state"]
    return {
        f"{key}.{name}": torch.as_tensor(value)
        for name, index in _indices(groups).items()
        for key, value in kept.get(index, {}).items()
    }


def restore(
    optimiser: Optimizer, now: list[Group], saved: list[Group], moments: Mapping[str, Tensor]
) -> None:
    """Bring an optimiser to a saved state.

    Args:
        optimiser: of the same parameters in the same groups.
        now: its groups.
        saved: those of the saved state, as JSON gives them back.
        moments: as `moments_of` gave them.
    """
    index = _indices(saved)
    state: dict[int, dict[str, Tensor]] = {}
    for full, value in moments.items():
        key, name = full.split(".", 1)
        state.setdefault(index[name], {})[key] = value
    groups = []
    for mine, theirs in zip(now, saved, strict=True):  # JSON has no tuples, such as betas
        values = {k: tuple(v) if isinstance(mine.get(k), tuple) else v for k, v in theirs.items()}
        groups.append({**values, "params": [index[name] for name in theirs["params"]]})
    optimiser.load_state_dict({"state": state, "param_groups": groups})


def _indices(groups: list[Group]) -> dict[str, int]:
    """PyTorch's number of each parameter: its place in the groups one after another."""
    return {name: i for i, name in enumerate(n for group in groups for n in group["params"])}
