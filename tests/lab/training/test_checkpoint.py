"""A resumed run is the run that was never stopped, and no fault costs what was saved."""

from __future__ import annotations

import errno
import os
import pickle
import resource
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

from paceline.errors import InvalidOption, ModelError
from paceline.lab.training.checkpoint import Progress, TrainingState, load, save

SETTINGS = {"lr": 1e-2, "betas": (0.9, 0.95), "drafter": "medusa"}


class Net(nn.Module):
    """Dropout, a buffer, a frozen and a tied weight: all that is easily forgotten."""

    def __init__(self, width: int = 6) -> None:
        super().__init__()
        self.inside = nn.Linear(4, width)
        self.norm = nn.BatchNorm1d(width)
        self.outside = nn.Linear(width, 4)
        self.again = self.outside
        self.frozen = nn.Parameter(torch.ones(4), requires_grad=False)

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = self.again(functional.dropout(self.norm(self.inside(x)).relu(), 0.3))
        return y * self.frozen


def new_run(seed: int, width: int = 6) -> TrainingState:
    torch.manual_seed(seed)
    model = Net(width)
    trained = [p for p in model.parameters() if p.requires_grad]
    groups = [{"params": trained[:2], "weight_decay": 0.0}, {"params": trained[2:]}]
    optimiser = torch.optim.AdamW(groups, lr=1e-2, betas=(0.9, 0.95))
    return TrainingState(model, [optimiser], torch.default_generator, np.random.default_rng(seed))


def train(run: TrainingState, steps: int, begin: int = 0) -> None:
    """Data from one generator, dropout from the other, and a rate that changes."""
    for step in range(begin, begin + steps):
        x = torch.from_numpy(run.numpy_rng.normal(size=(8, 4)).astype(np.float32))
        for group in run.optimisers[0].param_groups:
            group["lr"] = 1e-2 / (step + 1)
        loss = (run.model(x) - x).square().mean()
        run.optimisers[0].zero_grad()
        loss.backward()
        run.optimisers[0].step()


def weights(run: TrainingState) -> dict[str, np.ndarray]:
    return {name: value.numpy().copy() for name, value in run.model.state_dict().items()}


def same(first: dict[str, np.ndarray], second: dict[str, np.ndarray]) -> bool:
    return all(np.array_equal(first[name], second[name]) for name in first.keys() | second.keys())


@pytest.fixture
def saved(tmp_path: Path) -> Path:
    """A checkpoint after five steps."""
    run, path = new_run(1), tmp_path / "run.safetensors"
    train(run, 5)
    save(path, run, Progress(5, {"shard": 2, "row": 17}), SETTINGS)
    return path


def test_five_steps_and_five_more_are_ten(saved: Path) -> None:
    straight = new_run(1)
    train(straight, 10)
    resumed = new_run(99)  # as in a new process: nothing is as it was
    assert load(saved, resumed, SETTINGS) == Progress(5, {"shard": 2, "row": 17})
    assert not same(weights(straight), weights(resumed))
    train(resumed, 5, begin=5)
    assert same(weights(straight), weights(resumed))


@pytest.mark.parametrize("forgotten", ["torch_rng", "numpy_rng", "optimiser", "running_mean"])
def test_each_part_of_the_state_is_needed(saved: Path, forgotten: str) -> None:
    straight = new_run(1)
    train(straight, 10)
    resumed = new_run(99)
    load(saved, resumed, SETTINGS)
    if forgotten == "torch_rng":
        torch.manual_seed(0)
    elif forgotten == "numpy_rng":
        resumed.numpy_rng.random()
    elif forgotten == "optimiser":
        resumed.optimisers[0].state.clear()
    else:
        resumed.model.norm.running_mean.zero_()
    train(resumed, 5, begin=5)
    assert not same(weights(straight), weights(resumed))


def test_a_full_disk_leaves_the_earlier_checkpoint(saved: Path) -> None:
    before = saved.read_bytes()
    run = new_run(1)
    train(run, 6)
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1000, limits[1]))
    try:
        with pytest.raises(InvalidOption, match=r"cannot write .*run.safetensors \(File too large"):
            save(saved, run, Progress(6, {}), SETTINGS)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert saved.read_bytes() == before
    assert list(saved.parent.iterdir()) == [saved]


def test_an_error_at_the_last_moment_does_too(saved: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(_: int) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    before = saved.read_bytes()
    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(InvalidOption, match="No space left on device"):
        save(saved, new_run(1), Progress(6, {}), SETTINGS)
    assert saved.read_bytes() == before
    assert list(saved.parent.iterdir()) == [saved]


def cut(content: bytes) -> bytes:
    return content[:-9]


def flip(content: bytes) -> bytes:
    return content[:-9] + bytes([content[-9] ^ 1]) + content[-8:]


def reset_step(content: bytes) -> bytes:
    changed = content.replace(rb"\"step\": 5", rb"\"step\": 6")
    assert changed != content
    return changed


class Trap:
    def __reduce__(self) -> tuple[Any, ...]:
        return (open, ("pickle-was-run", "w"))


@pytest.mark.parametrize(
    ("damage", "reason"),
    [
        (cut, "no checkpoint, or cut short"),
        (flip, "its content was changed"),
        (reset_step, "its content was changed"),
        (lambda _: pickle.dumps(Trap()), "no checkpoint, or cut short"),
        (lambda _: b"", "no checkpoint, or cut short"),
    ],
)
def test_damaged_files_are_refused_and_change_nothing(
    saved: Path, damage: Any, reason: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(saved.parent)
    saved.write_bytes(damage(saved.read_bytes()))
    run = new_run(3)
    before = weights(run)
    with pytest.raises(ModelError, match=reason) as caught:
        load(saved, run, SETTINGS)
    assert "\n" not in str(caught.value)
    assert same(before, weights(run))
    assert not run.optimisers[0].state
    assert list(saved.parent.iterdir()) == [saved]


def test_another_run_is_refused_by_what_differs(saved: Path) -> None:
    run = new_run(3)
    before = weights(run)
    with pytest.raises(InvalidOption, match=r"other settings \(drafter, seed\)"):
        load(saved, run, {**SETTINGS, "drafter": "hydra", "seed": 1})
    with pytest.raises(ModelError, match=r"another model: inside\.bias has another shape"):
        load(saved, new_run(3, width=7), SETTINGS)
    run.model.inside.weight.requires_grad_(False)
    with pytest.raises(ModelError, match=r"another model: the model lacks inside\.weight"):
        load(saved, run, SETTINGS)
    other = TrainingState(
        run.model,
        [torch.optim.AdamW([p for p in run.model.parameters() if p.requires_grad])],
        run.torch_rng,
        run.numpy_rng,
    )
    run.model.inside.weight.requires_grad_(True)
    with pytest.raises(ModelError, match="another optimiser"):
        load(saved, other, SETTINGS)
    with pytest.raises(ModelError, match="there is no such file"):
        load(saved.with_name("none"), run, SETTINGS)
    assert same(before, weights(run))


def test_a_checkpoint_before_the_first_step_can_be_resumed(tmp_path: Path) -> None:
    run = new_run(1)
    save(tmp_path / "first", run, Progress(0, {}), {})
    resumed = new_run(2)
    load(tmp_path / "first", resumed, {})
    run.torch_rng.manual_seed(4)
    train(run, 2)
    run.torch_rng.manual_seed(4)
    train(resumed, 2)
    assert same(weights(run), weights(resumed))
