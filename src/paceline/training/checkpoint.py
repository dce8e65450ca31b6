"""A run of training on disk: everything that the next step depends on, so that it resumes exactly.

One safetensors file holds tensors, JSON and a digest of both. Nothing is ever unpickled. A new
checkpoint takes the old one's place only when all of it is on the disk.
"""

from __future__ import annotations

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

from paceline.errors import InvalidOption, ModelError
from paceline.models.whole_file import whole_file
from paceline.training.digest import digest
from paceline.training.optimiser_state import Group, groups_of, moments_of, restore

_FORMAT = 1
"""Raised when the meaning of a checkpoint changes, so that older ones are not read."""

_MODEL, _OPTIMISER, _TORCH_RNG = "model.", "optimiser.", "torch_rng"
"""Where tensors stand in the file: two prefixes and a name."""


@dataclass(frozen=True, slots=True)
class Run:
    """What changes as a model is trained.

    Attributes:
        model: its persistent buffers and those parameters that take gradients are kept; frozen
            ones are not, since training leaves them as they are.
        optimisers: such as AdamW; of those parameters, together.
        torch_rng: on the CPU, such as `torch.default_generator`.
        numpy_rng: such as `numpy.random.default_rng(seed)`.
    """

    model: nn.Module
    optimisers: Sequence[Optimizer]
    torch_rng: torch.Generator
    numpy_rng: np.random.Generator

    def parameters(self) -> dict[str, nn.Parameter]:
        """The parameters that are trained; of tied ones the first."""
        return {name: p for name, p in self.model.named_parameters() if p.requires_grad}

    def tensors(self) -> dict[str, Tensor]:
        """Trained parameters and persistent buffers, detached but not copied."""
        known = {name for name, _ in self.model.named_parameters(remove_duplicate=False)}
        state = self.model.state_dict()
        buffers = {name: value for name, value in state.items() if name not in known}
        return {name: p.detach() for name, p in self.parameters().items()} | buffers


@dataclass(frozen=True, slots=True)
class Progress:
    """How far a run has come.

    Attributes:
        step: updates done.
        data: where the data goes on, as plain values that JSON holds.
    """

    step: int
    data: Mapping[str, Any]


def save(path: Path, run: Run, progress: Progress, settings: Mapping[str, Any]) -> None:
    """Write a checkpoint, whole or not at all.

    Args:
        path: of the file; its directory exists.
        run: what is trained.
        progress: how far it came.
        settings: what a run that resumes must share, as plain values that JSON holds.

    Raises:
        InvalidOption: it cannot be written; what was at `path` is still there.
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
    try:
        with whole_file(path) as part, part.open("wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
    except OSError as error:
        raise InvalidOption(
            f"cannot write {path} ({error.strerror or error}): free space or give another place; "
            "an earlier checkpoint there is untouched"
        ) from error


def load(path: Path, run: Run, settings: Mapping[str, Any]) -> Progress:
    """Bring a run to where a checkpoint left it. Nothing is changed unless all of it fits.

    Raises:
        ModelError: the file is missing, damaged, no checkpoint, or of another model.
        InvalidOption: it is of a run with other settings.
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
