"""Commands that train: text that a model wrote, and a run that Ctrl-C ends and that goes on."""

from __future__ import annotations

import signal
from collections.abc import Sequence
from pathlib import Path

import pytest
from tests.cli.conftest import Command, Outcome

from paceline.lab.training import run
from paceline.lab.training.data import Shards, Text
from paceline.models.source import resolve


def written(folder: Path, model: Path, texts: Sequence[Text]) -> Path:
    """Return the folder with a shard of texts, as if the model had written them."""
    Shards(folder, {"model": resolve(str(model)).fingerprint, "prompts": "counting"}).write(
        0, texts
    )
    return folder


def stopped_and_taken_up(
    command: Command, monkeypatch: pytest.MonkeyPatch, arguments: Sequence[str]
) -> Outcome:
    """Run a command until Ctrl-C in its second update, then again to its end; the first outcome."""
    genuine = run.check_finite

    def interrupted(loss: float, step: int, checkpoint: Path | None) -> None:
        if step == 1:
            signal.raise_signal(signal.SIGINT)
        genuine(loss, step, checkpoint)

    with monkeypatch.context() as patched:
        patched.setattr(run, "check_finite", interrupted)
        first = command(*arguments)
    assert first.code == 130, first.err
    second = command(*arguments)
    assert second.code == 0, second.err
    return first
