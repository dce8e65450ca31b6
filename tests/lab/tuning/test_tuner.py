"""The plan of a tuning run on simulated configurations: what wins, when it ends, what is kept."""

from __future__ import annotations

from pathlib import Path

import pytest

pytest.importorskip("optuna")

from tests.lab.tuning.simulated import Clock, SimulatedTrack

from paceline.lab.tuning.search import Search
from paceline.lab.tuning.space import DEFAULT, PLAIN, Space, configuration
from paceline.lab.tuning.tuner import Tuner
from paceline.registry.tuned_choice import Configuration

BEST = configuration("suffix-decoding+recycling", "fixed 7x4")
GOOD = configuration("recycling", "cost-model")
SPACE = Space()
HOUR = 3600.0
PLAY = 5 * 1.5
"""Seconds that a play of a whole cohort takes, about."""


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
        for each in SPACE.everything.values()
    }
    speeds[BEST.name] = 1.9
    clock = Clock()
    track = SimulatedTrack(clock, speeds, noise=noise)
    running = tuner(tmp_path, track, clock, 120 * PLAY)
    assert last(running) == BEST
    assert running.finals()[0]["speedup"] == pytest.approx(1.9, rel=0.15)


def test_no_configuration_is_tried_twice_and_all_are_in_the_end(tmp_path: Path) -> None:
    clock = Clock()
    track = SimulatedTrack(clock, {}, noise=0.05, prompts=6)
    running = tuner(tmp_path, track, clock, 1000 * HOUR)
    for _ in running.run():
        break
    cohorts = [each for opened in track.opened[:-1] for each in opened]
    assert sorted(each.name for each in cohorts) == sorted(SPACE.everything)
    assert running.elapsed < 1000 * HOUR / 2


def test_slow_candidates_are_dropped_on_the_way(tmp_path: Path) -> None:
    clock = Clock()
    track = SimulatedTrack(clock, {GOOD.name: 1.5}, noise=0.02)
    running = tuner(tmp_path, track, clock, 80 * PLAY)
    last(running)
    assert GOOD.name not in running.pruned
    assert len(running.pruned) > 5
    prompts = {row["drafter"]: row["prompts"] for row in running.searched()}
    assert prompts[GOOD.name] == 6
    assert all(prompts[name] == 3 for name in running.pruned)


@pytest.mark.parametrize("speed", [0.9, 1.0, 1.015])
def test_plain_decoding_is_chosen_where_nothing_is_faster_by_the_margin(
    tmp_path: Path, speed: float
) -> None:
    clock = Clock()
    track = SimulatedTrack(clock, {}, others=speed)
    assert last(tuner(tmp_path, track, clock, 20 * PLAY)) == PLAIN


@pytest.mark.parametrize("seed", range(6))
def test_the_luckiest_of_slow_ones_is_not_chosen(tmp_path: Path, seed: int) -> None:
    clock = Clock()
    track = SimulatedTrack(clock, {}, others=0.97, noise=0.03, seed=seed)
    assert last(tuner(tmp_path, track, clock, 25 * PLAY)) == PLAIN


def test_prompts_of_different_kinds_do_not_hide_a_gain(tmp_path: Path) -> None:
    """Half of the prompts lose a little and half gain much, as repetitive ones do."""
    clock = Clock()
    track = SimulatedTrack(clock, {GOOD.name: 0.92}, others=0.4, repetitive=2.0)
    assert last(tuner(tmp_path, track, clock, 30 * PLAY)) == GOOD


def test_luck_in_the_search_does_not_win_a_final(tmp_path: Path) -> None:
    """Noise of 30% makes something look fast; on held-out prompts it has to show again."""
    clock = Clock()
    track = SimulatedTrack(clock, {}, others=0.8, noise=0.3)
    running = tuner(tmp_path, track, clock, 100 * PLAY)
    chosen = last(running)
    assert running.searched()[0]["speedup"] > 1.02
    assert chosen == PLAIN


@pytest.mark.parametrize("seconds", [0.2 * PLAY, PLAY, 7.3 * PLAY, 40 * PLAY])
def test_the_time_limit_is_kept_within_a_slice(tmp_path: Path, seconds: float) -> None:
    clock = Clock()
    track = SimulatedTrack(clock, {GOOD.name: 1.5})
    running = tuner(tmp_path, track, clock, seconds)
    chosen = last(running)
    assert running.elapsed <= seconds + PLAY / 2
    if seconds < 2 * PLAY:
        assert chosen is None


def test_finals_are_for_those_that_were_not_pruned_and_the_default(tmp_path: Path) -> None:
    # A search of two prompts prunes nothing.
    speeds = {configuration(drafter, "cost-model").name: 1.3 for drafter in SPACE.drafters}
    clock = Clock()
    track = SimulatedTrack(clock, {**speeds, DEFAULT.name: 1.1}, prompts=4)
    running = tuner(tmp_path, track, clock, 14 * PLAY)
    last(running)
    assert not running.pruned
    assert [row["drafter"] for row in running.finals()][-1] == DEFAULT.name
    assert len(running.finals()) == 4

    longer = SimulatedTrack(clock, {GOOD.name: 1.5}, noise=0.02)
    running = tuner(tmp_path / "other", longer, clock, 15 * PLAY)
    last(running)
    assert running.pruned
    finalists = {row["drafter"] for row in running.finals()}
    assert GOOD.name in finalists
    assert finalists.isdisjoint(running.pruned)


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
    held_out = set(again.held_out)
    asked = {name for prompt, who in again.plays if prompt not in held_out for name in who}
    assert tried.isdisjoint(asked)


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
