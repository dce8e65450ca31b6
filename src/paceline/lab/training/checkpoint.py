"""Checkpoints for exact resume: parameters, optimiser state, RNG states and progress.

One safetensors file holds tensors, JSON and a SHA-256 of both, written atomically. No pickle.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save as serialise
from torch import Tensor, nn
from torch.optim import Optimizer

from paceline.core.cache import written_file
from paceline.errors import InvalidOption, ModelError

# Settings of an optimiser's parameter group, with parameter names under "params".
Group = dict[str, Any]


def groups_of(model: nn.Module, optimiser: Optimizer) -> list[Group]:
    """Return the parameter groups of an optimiser, by parameter names of the model."""
    names = {id(p): name for name, p in model.named_parameters()}
    return [
        {**group, "params": [names[id(p)] for p in group["params"]]}
        for group in optimiser.param_groups
    ]


def moments_of(optimiser: Optimizer, groups: list[Group]) -> dict[str, Tensor]:
    """Return the optimiser state (AdamW: steps and moments) as tensors named KEY.PARAMETER."""
    kept = optimiser.state_dict()["state"]
    return {
        f"{key}.{name}": torch.as_tensor(value)
        for name, index in _indices(groups).items()
        for key, value in kept.get(index, {}).items()
    }


def restore(
    optimiser: Optimizer, now: list[Group], saved: list[Group], moments: Mapping[str, Tensor]
) -> None:
    """Load optimiser state: `saved` groups as JSON returns them, `moments` of `moments_of`."""
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
    # PyTorch numbers parameters by their place in the concatenated groups.
    return {name: i for i, name in enumerate(n for group in groups for n in group["params"])}


def digest(tensors: Mapping[str, Tensor], text: str) -> str:
    """Return the SHA-256 of `text` and of contiguous CPU tensors (names, dtypes, shapes, bytes)."""
    found = hashlib.sha256(text.encode())
    for name in sorted(tensors):
        tensor = tensors[name]
        found.update(repr((name, str(tensor.dtype), tuple(tensor.shape))).encode())
        found.update(tensor.reshape(-1).view(torch.uint8).numpy().data)
    return found.hexdigest()


# Increase when the meaning of a checkpoint changes.
_FORMAT = 1

_MODEL, _OPTIMISER, _TORCH_RNG = "model.", "optimiser.", "torch_rng"


@dataclass(frozen=True, slots=True)
class TrainingState:
    """Mutable state of a training run.

    Attributes:
        model: saved are its persistent buffers and parameters that require gradients.
        optimisers: of those parameters, together.
        torch_rng: on the CPU.
    """

    model: nn.Module
    optimisers: Sequence[Optimizer]
    torch_rng: torch.Generator
    numpy_rng: np.random.Generator

    def parameters(self) -> dict[str, nn.Parameter]:
        return {name: p for name, p in self.model.named_parameters() if p.requires_grad}

    def tensors(self) -> dict[str, Tensor]:
        """Return trained parameters and persistent buffers, detached but not copied."""
        known = {name for name, _ in self.model.named_parameters(remove_duplicate=False)}
        state = self.model.state_dict()
        buffers = {name: value for name, value in state.items() if name not in known}
        return {name: p.detach() for name, p in self.parameters().items()} | buffers


@dataclass(frozen=True, slots=True)
class Progress:
    """Updates done, and the data position as JSON-serialisable values."""

    step: int
    data: Mapping[str, Any]


def save(path: Path, run: TrainingState, progress: Progress, settings: Mapping[str, Any]) -> None:
    """Write a checkpoint atomically. A resumed run must have equal `settings` (JSON-serialisable).

    Raises:
        InvalidOption: it cannot be written; the earlier file is intact.
    """
    groups = [groups_of(run.model, each) for each in run.optimisers]
    tensors = {**_under(_MODEL, run.tensors()), _TORCH_RNG: run.torch_rng.get_state()}
    for index, each in enumerate(run.optimisers):
        tensors |= _under(f"{_OPTIMISER}{index}.", moments_of(each, groups[index]))
    tensors = {name: value.cpu().contiguous() for name, value in tensors.items()}
    state = {
        "format": _FORMAT,
        "step": progress.step,
        "data": progress.data,
        "settings": settings,
        "groups": groups,
        "numpy_rng": run.numpy_rng.bit_generator.state,
    }
    text = json.dumps(state, sort_keys=True)
    content = serialise(tensors, {"state": text, "digest": digest(tensors, text)})
    advice = "free space or give another place; an earlier checkpoint there is untouched"
    with written_file(path, advice) as part, part.open("wb") as file:
        file.write(content)
        file.flush()
        os.fsync(file.fileno())


def load(path: Path, run: TrainingState, settings: Mapping[str, Any]) -> Progress:
    """Restore a run from a checkpoint; changes nothing unless all of it fits.

    Raises:
        ModelError: the file is missing, damaged, no checkpoint, or of another model.
        InvalidOption: the settings differ.
    """
    tensors, state = _read(path)
    saved, mine = state["settings"], json.loads(json.dumps(settings))
    if saved != mine:
        other = sorted(k for k in saved.keys() | mine.keys() if saved.get(k) != mine.get(k))
        raise InvalidOption(
            f"{path} is of a run with other settings ({', '.join(other)}): give the same to "
            "resume, or another place to begin anew"
        )
    target = run.tensors()
    model = _below(_MODEL, tensors)
    _check_fit(path, model, target)
    groups = [groups_of(run.model, each) for each in run.optimisers]
    if _names(groups) != _names(state["groups"]):
        raise ModelError(f"{path} is of another optimiser: group parameters as before to resume")
    run.numpy_rng.bit_generator.state = state["numpy_rng"]
    run.torch_rng.set_state(tensors[_TORCH_RNG])
    for index, each in enumerate(run.optimisers):
        moments = _below(f"{_OPTIMISER}{index}.", tensors)
        restore(each, groups[index], state["groups"][index], moments)
    for name, value in target.items():
        value.copy_(model[name])
    return Progress(state["step"], state["data"])


def _names(groups: Sequence[Sequence[Group]]) -> list[list[list[str]]]:
    return [[group["params"] for group in each] for each in groups]


def _under(prefix: str, tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    return {prefix + name: value for name, value in tensors.items()}


def _below(prefix: str, tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    mine = {name: value for name, value in tensors.items() if name.startswith(prefix)}
    return {name.removeprefix(prefix): value for name, value in mine.items()}


def _read(path: Path) -> tuple[dict[str, Tensor], dict[str, Any]]:
    try:
        with safe_open(path, framework="pt") as file:
            metadata = file.metadata() or {}
            # Copies, since the optimiser goes on in these and not in the file's pages.
            tensors = {name: file.get_tensor(name).clone() for name in file.keys()}  # noqa: SIM118
        text = metadata["state"]
        whole = metadata["digest"] == digest(tensors, text)
        state = json.loads(text) if whole else {}
    except (OSError, SafetensorError, KeyError, ValueError) as error:
        reason = "it is no checkpoint, or cut short" if path.exists() else "there is no such file"
        raise ModelError(f"cannot resume from {path} ({reason}): give another one") from error
    if not whole:
        raise ModelError(f"cannot resume from {path} (its content was changed): give another one")
    if state["format"] != _FORMAT:
        raise ModelError(f"{path} is of another version of paceline: train anew or use that one")
    return tensors, state


def _check_fit(path: Path, saved: Mapping[str, Tensor], target: Mapping[str, Tensor]) -> None:
    for name in sorted(saved.keys() | target.keys()):
        if name not in saved or name not in target:
            where = "the checkpoint" if name not in saved else "the model"
            raise ModelError(f"{path} is of another model: {where} lacks {name}")
        if saved[name].shape != target[name].shape or saved[name].dtype != target[name].dtype:
            raise ModelError(f"{path} is of another model: {name} has another shape or type")
