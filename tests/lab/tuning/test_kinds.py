"""One time limit for both kinds of decoding: how it is shared, and what each run saves."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest

pytest.importorskip("optuna")

from tests.cli import fakes
from tests.lab.tuning.simulated import Clock, SimulatedTrack

from paceline.lab.tuning import tuner as kinds
from paceline.lab.tuning.search import Search
from paceline.lab.tuning.space import PLAIN, configuration
from paceline.lab.tuning.tuner import Outcome, Tuner, TuningTask, tune_kinds
from paceline.registry import tuned_choice as tuned
from paceline.registry.tuned_choice import TEMPERATURE_KINDS, Configuration, Kind

BEST: Mapping[Kind, str] = {
    "greedy": configuration("recycling", "cost-model").name,
    "sampled": configuration("suffix-decoding", "cost-model").name,
}
SETTINGS = {"prompts": "mine", "max_new_tokens": 6, "temperature": 0.0}


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PACELINE_CACHE", str(tmp_path / "cache"))


def tuned_in(
    path: Path,
    seconds: float,
    clock: Clock,
    *,
    presses: int | None = None,
    seen: list[tuple[float, str]] | None = None,
) -> dict[Kind, Outcome]:
    """Tune both kinds; whoever presses keys does so at a play of either."""
    pressed: list[bool] = []

    def play(plays: int) -> None:
        if plays == presses:
            pressed.append(True)

    tasks = {}
    for kind in TEMPERATURE_KINDS:
        track = SimulatedTrack(clock, {BEST[kind]: 1.8}, on_play=play)
        search = Search(path / "tuned.journal", kind, len(track.searching))
        tasks[kind] = TuningTask(search, track, SETTINGS)
    return tune_kinds(
        fakes.loaded(),
        tasks,
        seconds,
        interrupted=lambda: bool(pressed),
        watch=lambda elapsed, text: None if seen is None else seen.append((elapsed, text)),
        clock=clock,
    )


def test_each_kind_gets_what_is_best_for_it_in_its_half_of_the_time(tmp_path: Path) -> None:
    clock = Clock()
    seen: list[tuple[float, str]] = []
    outcomes = tuned_in(tmp_path, 300.0, clock, seen=seen)
    choices = tuned.read(fakes.loaded().place)
    for kind in TEMPERATURE_KINDS:
        assert choices[kind].configuration.name == BEST[kind]
        assert outcomes[kind].choice == choices[kind]
        assert 100 < choices[kind].evidence["seconds"] < 155
    times = [elapsed for elapsed, _ in seen]
    assert times == sorted(times)
    assert 240 < times[-1] < 310
    assert seen[0][1].startswith("greedy: 0 tried")
    assert seen[-1][1].startswith("sampled: ")


@pytest.mark.parametrize(
    ("used", "shares"), [((100.0, 1.0), [300.0, 500.0]), ((400.0,), [300.0, 200.0])]
)
def test_time_that_one_kind_leaves_or_overruns_is_the_other_s(
    tmp_path: Path, used: tuple[float, ...], shares: list[float], monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = Clock()
    needs = iter((*used, 0.0))
    given: list[float] = []

    class Brief(Tuner):
        """Takes as long as it says, and finds nothing."""

        def run(self) -> Iterator[Configuration | None]:
            given.append(self._seconds)
            clock.now += next(needs)
            return iter(())

    monkeypatch.setattr(kinds, "Tuner", Brief)
    outcomes = tuned_in(tmp_path, 600.0, clock)
    assert given == shares
    assert all(outcome.choice is None for outcome in outcomes.values())


def test_an_interruption_leaves_the_kinds_out_that_had_not_begun(tmp_path: Path) -> None:
    outcomes = tuned_in(tmp_path, 600.0, Clock(), presses=3)
    assert list(outcomes) == ["greedy"]
    assert outcomes["greedy"].choice is None
    assert tuned.read(fakes.loaded().place) == {}


def test_plain_decoding_is_saved_for_kinds_where_nothing_is_faster(tmp_path: Path) -> None:
    clock = Clock()
    track = SimulatedTrack(clock, {}, others=0.8)
    search = Search(tmp_path / "tuned.journal", "one", len(track.searching))
    tune_kinds(
        fakes.loaded(),
        {"sampled": TuningTask(search, track, SETTINGS)},
        100.0,
        interrupted=lambda: False,
        watch=lambda elapsed, text: None,
        clock=clock,
    )
    choices = tuned.read(fakes.loaded().place)
    assert {kind: each.configuration for kind, each in choices.items()} == {"sampled": PLAIN}
