"""Commands over a table instead of a model."""

from __future__ import annotations

import itertools
import signal
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pytest
from tests.cli import fakes

from paceline.cli.app import run
from paceline.engine.engine import Engine, Event
from paceline.registry import loading
from paceline.registry.options import Options


@dataclass(frozen=True)
class Outcome:
    """How a command ended."""

    code: int
    out: str
    err: str


Command = Callable[..., Outcome]


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    path = tmp_path / "cache"
    monkeypatch.setenv("PACELINE_CACHE", str(path))
    return path


@pytest.fixture
def loads(monkeypatch: pytest.MonkeyPatch) -> list[Options]:
    """Replaces the loading of models; collects the options of every load."""
    seen: list[Options] = []

    def load_model(asked: Options, **_: object) -> loading.Loaded:
        seen.append(asked)
        return fakes.loaded(asked.max_context or 600)

    monkeypatch.setattr(loading, "load_model", load_model)
    return seen


@pytest.fixture
def command(capsys: pytest.CaptureFixture[str]) -> Command:
    """Runs a command line in this process."""

    def call(*arguments: str) -> Outcome:
        code = run(arguments)
        captured = capsys.readouterr()
        return Outcome(code, captured.out, captured.err)

    return call


def one_line(outcome: Outcome) -> bool:
    """Whether an error left as the contract says: exit code 2 and one line.

    Before it may stand what took long: costs are measured while an engine is made.
    """
    lines = [each for each in outcome.err.splitlines() if not each.startswith("measuring ")]
    return outcome.code == 2 and len(lines) == 1 and lines[0].startswith("paceline: error: ")


def press_in_step(monkeypatch: pytest.MonkeyPatch, step: int) -> None:
    """Press Ctrl-C in the course of an engine's step, the first being 1."""
    genuine = Engine.step
    steps = itertools.count(1)

    def counting(self: Engine) -> list[Event]:
        if next(steps) == step:
            signal.raise_signal(signal.SIGINT)
        return genuine(self)

    monkeypatch.setattr(Engine, "step", counting)
