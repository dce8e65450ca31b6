"""A training run that is killed, and goes on."""

from __future__ import annotations

import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import torch

from paceline.lab.training.run import TrainingRun


def goes_on_bit_for_bit(task: type[Any], recipe: Any, place: Path) -> None:
    """Kill a run of a recipe behind its checkpoint at step 5, and compare with a whole one."""
    kind = type(recipe)
    code = f"""
import os, signal
from pathlib import Path
from {kind.__module__} import {kind.__name__}
from {task.__module__} import {task.__name__}
from paceline.lab.training.run import TrainingRun
run = TrainingRun({task.__name__}({recipe!r}), Path({str(place)!r}))
for report in run.run():
    if report.step == 5:
        run.save()
    if report.step == 8:
        os.kill(os.getpid(), signal.SIGKILL)
"""
    ended = subprocess.run([sys.executable, "-c", code], check=False)
    assert ended.returncode == -signal.SIGKILL
    resumed, whole = TrainingRun(task(recipe), place), TrainingRun(task(recipe))
    assert resumed.step == 5
    losses = [[report.loss for report in each.run()] for each in (whole, resumed)]
    assert losses[0][5:] == losses[1]
    states = [each.task.module.named_parameters() for each in (whole, resumed)]
    for (name, one), (_, other) in zip(*states, strict=True):
        assert torch.equal(one, other), name
