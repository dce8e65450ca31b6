"""Clocks around a loop whose parts take known times, and steps put together again."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from time import sleep
from types import SimpleNamespace
from typing import Any

import pytest
from tests.cli import fakes

from paceline.errors import InvalidOption
from paceline.lab.measure import doctor as clocks
from paceline.lab.measure import doctor as profile
from paceline.lab.measure.doctor import INFERENCE, PARTS, Clocks
from paceline.registry import loading


class Tick:
    """A clock that only moves when told to."""

    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now

    def spend(self, seconds: float) -> None:
        self.now += seconds


class Part:
    """Any part of the loop; every method takes as long as it is told."""

    rows = 5
    inference_seconds = 3.0

    def __init__(self, clock: Tick, timed: bool = False) -> None:
        self.clock = clock
        self.capabilities = SimpleNamespace(timed=timed)

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_"):
            raise AttributeError(name)
        return lambda seconds, inner=None: (
            self.clock.spend(seconds),
            inner() if inner else None,
            self.clock.spend(seconds),
        )


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Tick:
    tick = Tick()
    monkeypatch.setattr(clocks, "perf_counter", tick)
    return tick


def test_every_moment_is_booked_once_on_the_innermost_part(clock: Tick) -> None:
    decoder = SimpleNamespace(**{name: Part(clock) for name in PARTS})
    before = dict(vars(decoder))
    with Clocks(decoder, PARTS) as running:
        running.begin()
        clock.spend(1)
        decoder.drafter.propose(2, lambda: decoder.controller.select(4))
        decoder.target.forward(16)
        decoder.target.keep(32)
        decoder.verifier.verify(64)
        decoder.verifier.extend(128)
        assert decoder.controller.rows == 5, "what is no method is handed on"
        decoder.target.fork(256)
        found = running.end()
    assert found == {
        INFERENCE: 32,
        "keeping the path": 64,
        "sampling and verification": 384,
        "drafting": 4,
        "draft sizing": 8,
        "loop and text": 513,
    }
    assert vars(decoder) == before, "the clocks are taken away"


def test_inference_is_told_from_inputs_where_the_target_knows(clock: Tick) -> None:
    decoder = SimpleNamespace(target=Part(clock, timed=True))
    with Clocks(decoder, ("target",)) as running:
        running.begin()
        decoder.target.forward(2)
        found = running.end()
    assert found == {INFERENCE: 3, "inputs and outputs": 1, "loop and text": 0}


class Counting:
    """A target of the engine that pretends to count the time of its nodes."""

    def __init__(self, target: Any) -> None:
        self._target = target
        self.capabilities = replace(target.capabilities, timed=True)
        self.inference_seconds = 0.0
        self.counts = 0

    def __getattr__(self, name: str) -> Any:
        return getattr(self._target, name)

    def forward(self, passes: Sequence[Any]) -> Any:
        sleep(0.001)
        self.inference_seconds = 0.001
        return self._target.forward(passes)

    def counted(self, passes: Sequence[Any], runs: int) -> Any:
        self.counts += runs
        assert len(passes) == 1
        return SimpleNamespace(seconds=0.004, groups={"attention": 0.001, "norms": 0.0, "o": 0.002})


def test_counted_parts_are_scaled_to_the_inference_without_counters() -> None:
    engine = loading.make_engine(fakes.loaded(), drafter="none", max_batch=1)
    engine.decoder.target = target = Counting(engine.decoder.target)  # type: ignore[assignment]
    prompt = profile.repetitive(engine.tokenizer, 600)
    found = profile.profile(engine, prompt, 1, rounds=2)
    assert (found.rows, found.context) == (1, len(prompt) - 1)
    assert found.parts["attention"] == pytest.approx(0.001 / 4)
    assert found.parts["o"] == pytest.approx(0.002 / 4)
    assert found.parts["between nodes"] == pytest.approx(0.001 / 4)
    assert "norms" not in found.parts
    assert INFERENCE not in found.parts
    assert found.slowdown == pytest.approx(3)
    assert found.covered == pytest.approx(0.75)
    assert found.closure == pytest.approx(1, abs=0.4)
    assert target.counts == 12
    assert engine.decoder.target is target
    assert engine.pending == 0


def test_a_drafter_without_drafts_is_said() -> None:
    engine = loading.make_engine(fakes.loaded(), drafter="none", max_batch=1)
    with pytest.raises(InvalidOption, match="drafts of 7 tokens"):
        profile.profile(engine, profile.repetitive(engine.tokenizer, 600), 8)
    assert engine.pending == 0


def test_a_context_without_room_is_said() -> None:
    engine = loading.make_engine(fakes.loaded(max_context=300), drafter="none", max_batch=1)
    with pytest.raises(InvalidOption, match="shorter prompt"):
        profile.profile(engine, list(range(5, 299)), 1)
