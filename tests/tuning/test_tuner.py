"""The plan of a tuning run on simulated configurations: what wins, when it ends, what is kept."""

from __future__ import annotations

from pathlib import Path

import pytest

pytest.importorskip("optuna")

from simulated import TOKENS, Clock, SimulatedTrack

from paceline.tuned import Configuration
from paceline.tuning.search import Search
from paceline.tuning.space import DEFAULT, DRAFTERS, EVERYTHING, PLAIN, configuration
from paceline.tuning.tuner import Tuner

BEST = configuration("suffix-decoding+recycling", "fixed 7x4")
GOOD = configuration("recycling", "cost-model")
HOUR = 3600.0
PLAY = 5 * TOKENS * 1.5
"""About what a play of a whole cohort takes."""


def tuner(path: Path, track: SimulatedTrack, clock: Clock, seconds: float, **more) -> Tuner:
    search = Search(path / "tuned.journal", "study", len(track.searching))
    return Tuner(search, track, seconds, clock=clock, **more)


def last(running: Tuner) -> Configuration | None:
    return list(running.run())[-1]


@pytest.mark.parametrize("noise", [0.0, 0.05])
def test_the_best_is_found_and_chosen(tmp_path: Path, noise: float) -> None:
    # Its drafter and its sizing show in others too, as they do in life.
    speeds = {
        each.name: 1.0 + 0.3 * (each.drafter == BEST.drafter) + 0.2 * (each.nodes == BEST.nodes)
        for each in EVERYTHING.values()
    }
    speeds[BEST.name] = 1.9
    clock = Clock()
    track = SimulatedTrack(clock, speeds, noise=noise)
    running = tuner(tmp_path, track, clock, 200 * PLAY)
    assert last(running) == BEST
    assert running.finals()[0]["speedup"] == pytest.approx(1.9, rel=0.15)


def test_no_configuration_is_tried_twice_and_all_are_in_the_end(tmp_path: Path) -> None:
    clock = Clock()
    track = SimulatedTrack(clock, {}, noise=0.05, prompts=6)
    running = tuner(tmp_path, track, clock, 1000 * HOUR)
    for _ in running.run():
        break
    cohorts = [each for opened in track.opened[:-1] for each in opened]
    assert sorted(each.name for each in cohorts) == sorted(EVERYTHING)
    assert running.elapsed < 1000 * HOUR / 2


def test_every_drafter_is_tried_before_sizes_are_varied(tmp_path: Path) -> None:
    clock = Clock()
    track = SimulatedTrack(clock, {})
    last(tuner(tmp_path, track, clock, 100 * PLAY))
    first = [each for opened in track.opened for each in opened][: len(DRAFTERS)]
    assert {each.drafter for each in first} == set(DRAFTERS)


def test_slow_candidates_are_dropped_on_the_way(tmp_path: Path) -> None:
    clock = Clock()
    track = SimulatedTrack(clock, {GOOD.name: 1.5}, noise=0.02)
    running = tuner(tmp_path, track, clock, 300 * PLAY)
    last(running)
    assert GOOD.name not in running.pruned
    assert len(running.pruned) > 10
    prompts = {row["drafter"]: row["prompts"] for row in running.searched()}
    assert prompts[GOOD.name] == 6
    assert all(prompts[name] == 3 for name in running.pruned)


@pytest.mark.parametrize("speed", [0.9, 1.0, 1.015])
@pytest.mark.parametrize("noise", [0.0, 0.03])
def test_plain_decoding_is_chosen_where_nothing_is_surely_faster(
    tmp_path: Path, speed: float, noise: float
) -> None:
    clock = Clock()
    track = SimulatedTrack(clock, {}, others=speed, noise=noise)
    assert last(tuner(tmp_path, track, clock, 120 * PLAY)) == PLAIN


def test_luck_in_the_search_does_not_win_a_final(tmp_path: Path) -> None:
    """Noise of 30% makes something look fast; on held-out prompts it has to show again."""
    clock = Clock()
    track = SimulatedTrack(clock, {}, others=0.8, noise=0.3)
    running = tuner(tmp_path, track, clock, 100 * PLAY)
    chosen = last(running)
    assert running.searched()[0]["speedup"] > 1.02
    assert chosen == PLAIN


@pytest.mark.parametrize("seconds", [0.2 * PLAY, PLAY, 7.3 * PLAY, 60 * PLAY])
def test_the_time_limit_is_kept_within_a_slice(tmp_path: Path, seconds: float) -> None:
    clock = Clock()
    track = SimulatedTrack(clock, {GOOD.name: 1.5})
    running = tuner(tmp_path, track, clock, seconds)
    chosen = last(running)
    assert running.elapsed <= seconds + PLAY / 2
    if seconds < 2 * PLAY:
        assert chosen is None


def test_the_default_is_in_every_final(tmp_path: Path) -> None:
    clock = Clock()
    track = SimulatedTrack(clock, {DEFAULT.name: 0.5, GOOD.name: 1.4})
    running = tuner(tmp_path, track, clock, 60 * PLAY)
    last(running)
    assert {DEFAULT.name, GOOD.name} <= {row["drafter"] for row in running.finals()}


def test_an_interruption_keeps_what_there_is_and_the_next_run_goes_on(tmp_path: Path) -> None:
    pressed: list[bool] = []

    def press(plays: int) -> None:
        if plays == 20:
            pressed.append(True)

    clock = Clock()
    track = SimulatedTrack(clock, {GOOD.name: 1.5}, on_play=press)
    running = tuner(tmp_path, track, clock, 200 * PLAY, interrupted=lambda: bool(pressed))
    assert last(running) is None
    assert len(track.plays) == 20
    known = {row["drafter"]: row["speedup"] for row in running.searched()}
    assert known

    again = SimulatedTrack(clock, {GOOD.name: 1.5})
    resumed = tuner(tmp_path, again, clock, 100 * PLAY)
    assert {row["drafter"]: row["speedup"] for row in resumed.searched()} == known
    assert last(resumed) == GOOD
    interrupted = {each.name for each in track.opened[-1]}  # they may be tried again
    tried = {name for name in known if name not in interrupted}
    finals = {tuple(opened) for opened in again.opened if DEFAULT in opened}
    cohorts = [opened for opened in again.opened if tuple(opened) not in finals]
    assert tried.isdisjoint(each.name for opened in cohorts for each in opened)


def test_an_interruption_after_a_final_keeps_its_winner(tmp_path: Path) -> None:
    clock = Clock()
    pressed: list[bool] = []
    track = SimulatedTrack(clock, {GOOD.name: 1.5})
    running = tuner(tmp_path, track, clock, 100 * PLAY, interrupted=lambda: bool(pressed))
    outcomes = []
    for outcome in running.run():
        outcomes.append(outcome)
        pressed.append(True)
    assert outcomes[0] == GOOD
    assert set(outcomes) == {GOOD}
    assert running.elapsed < 60 * PLAY


def test_who_watches_is_told_how_time_passes(tmp_path: Path) -> None:
    seen: list[tuple[float, str]] = []
    clock = Clock()
    track = SimulatedTrack(clock, {GOOD.name: 1.5})
    watch = lambda elapsed, text: seen.append((elapsed, text))  # noqa: E731
    last(tuner(tmp_path, track, clock, 60 * PLAY, watch=watch))
    assert [elapsed for elapsed, _ in seen] == sorted(elapsed for elapsed, _ in seen)
    assert "0 tried" in seen[0][1]
    assert f"best {GOOD.name}" in seen[-1][1]
