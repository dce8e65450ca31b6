"""Measurements of what watches its input: what is drawn, asked, counted and recorded."""

from __future__ import annotations

import argparse
import json
import random
from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from benchmarks.watching import memories, notes, thinking, windows
from tests.helpers.endless import endless_engine, endless_target

from paceline.audio.mel import RATE
from paceline.errors import InvalidOption
from paceline.lab.measure import results
from paceline.methods.streams.windows import Convolution

RNG = np.random.default_rng(3)


@pytest.fixture
def data(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    folder = tmp_path / "docs/results/data"
    folder.mkdir(parents=True)
    monkeypatch.chdir(tmp_path)
    return folder


def recorded(path: Path) -> Any:
    found = json.loads(path.read_text())
    results.validate(path.stem, found)
    return found


@pytest.mark.parametrize("seed", range(5))
def test_a_story_adds_up(seed: int) -> None:
    told = thinking.story(np.random.default_rng(seed), 10)
    total, sums = 0, []
    for number, (sentence, thought) in enumerate(zip(told.sentences, told.thoughts, strict=True)):
        assert sentence[0] == thought[0] == f"{number})"
        for verb, sign in (("adds", 1), ("takes", -1)):
            if verb in sentence:
                total += sign * int(sentence[sentence.index(verb) + 1])
                sums.append(str(total % 10))
        assert thought[1:] == ([str(total % 10)] if number < 9 else [])
    assert (told.summary, told.answer) == (sums, [str(total % 10)])


def test_rows_of_a_story_see_what_their_cache_says() -> None:
    told = thinking.story(np.random.default_rng(1), 3)
    source = sum(map(len, told.sentences))
    first = len(told.sentences[0])
    rows = {
        cache: thinking.story_rows(told, cache, False, False)
        for cache in ("groups", "shared", "seeing", "plain")
    }
    groups, plain = rows["groups"], rows["plain"]
    assert groups.sees[source, :source].sum() == first  # the first thought, its sentence
    assert not groups.sees[:source, source:].any()
    assert groups.positions[source] == 0
    # In a plain cache rows are in order of arrival, and see all that came before them.
    order = np.argsort(plain.positions)
    assert plain.positions[order].tolist() == list(range(len(order)))
    assert (plain.sees[np.ix_(order, order)] == np.tri(len(order), dtype=bool)).all()
    np.testing.assert_array_equal(rows["shared"].positions, plain.positions)
    np.testing.assert_array_equal(rows["shared"].sees, groups.sees)
    np.testing.assert_array_equal(rows["seeing"].positions, groups.positions)
    # Read first, every thought sees all.
    assert thinking.story_rows(told, "groups", True, False).sees[source:, :source].all()


def test_a_model_learns_and_is_told_stories(data: Path, tmp_path: Path) -> None:
    model = str(tmp_path / "model")
    assert thinking.main(["train", "--out", model, "--steps", "2", "--batch", "2"]) == 0
    line = ["measure", "--model", model, "--stories", "2", "--rates", "10", "--record", "some"]
    assert thinking.main(line) == 0
    found = recorded(data / "some.json")
    assert [row[2] for row in found["rows"]] == [*thinking.WAYS] * 2
    assert [row[4] < 50 for row in found["rows"]] == [True, True, False] * 2
    assert thinking.main(["measure", "--model", str(tmp_path)]) == 2
    plain = str(tmp_path / "plain")
    assert thinking.main(["train", "--cache", "plain", "--out", plain, "--steps", "1"]) == 0
    assert thinking.main(["compare", "--models", f"{model},{plain}", "--record", "both"]) == 0
    assert [row[0] for row in recorded(data / "both.json")["rows"]] == [
        "groups",
        "both: a plain cache",
    ]


def engine() -> Any:
    """One whose context holds a meeting, a token a letter."""
    made = endless_engine(target=endless_target(max_context=3000), max_batch=1)
    made.config["model"] = "tiny"
    return made


def meeting_of(seed: int) -> notes.Meeting:
    return notes.meeting(random.Random(seed))


def test_a_meeting_decides_once_and_asks_for_what_is_past() -> None:
    for seed in range(20):
        held = meeting_of(seed)
        assert len(held.segments) == len(held.values) == len(notes.DECIDED)
        assert all(map(notes._has, held.segments, held.values))
        assert held.answer in held.values[:4]
        assert not notes._has(held.segments[-1].split("We decide")[1], held.answer)


@pytest.mark.parametrize("way", ["notes", "all", "present"])
def test_what_is_answered_from(way: Any) -> None:
    made, held = engine(), meeting_of(1)
    given = argparse.Namespace(seconds=1.0, pass_seconds=0.01, row_seconds=0.001)
    found = notes.attend(made, way, held, given)
    assert len(found["notes"]) == (len(held.segments) if way == "notes" else 0)
    assert found["seconds"] > 0
    assert not made.pending


def test_meetings_are_recorded(data: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(notes, "PARAMS", replace(notes.PARAMS, max_new_tokens=4))
    monkeypatch.setattr(notes, "load", lambda model, **_: engine())
    assert notes.main(["--model", "tiny", "--meetings", "2", "--record", "some"]) == 0
    rows = recorded(data / "some.json")["rows"]
    longest = {row[0]: row[3] for row in rows}
    assert longest["all that was said"] > longest["the present segment alone"]


def layer(taps: int, size: int, outputs: int, **more: Any) -> Convolution:
    weights = RNG.standard_normal((taps, 1, size, outputs), np.float32)
    return Convolution(weights, RNG.standard_normal(outputs, np.float32), **more)


def test_windows_beside_a_stream() -> None:
    layers = [layer(3, 4, 5), layer(2, 5, 3, stride=2)]
    rows = RNG.standard_normal((80, 1, 4), np.float32)
    found = windows.beside_windows("net", layers, rows, 12, 4)
    assert (found["equal"], found["deviation"], found["windows"]) == (True, 0, 17)
    with pytest.raises(InvalidOption, match="ends inside a stride"):
        windows.beside_windows("net", layers, rows, 12, 3)
    other = windows.beside_windows("net", layers, rows, 12, 3, inexact=True)
    assert not other["equal"]
    assert other["deviation"] > 0.01


def test_zeros_at_the_ends_of_windows_are_all_that_differs() -> None:
    """Rows are those of the same times: without zeros in the middle of windows they are equal."""
    rows = np.zeros((80, 1, 4), np.float32)
    layers = [
        replace(layer(3, 4, 4, padding=1, slope=1), bias=np.zeros(4, np.float32)),
        replace(layer(3, 4, 4, padding=1, slope=1, stride=2), bias=np.zeros(4, np.float32)),
        replace(layer(3, 4, 4, padding=1, slope=1, stride=2), bias=np.zeros(4, np.float32)),
        replace(layer(3, 4, 4, padding=1, slope=1), bias=np.zeros(4, np.float32)),
    ]
    for each in layers[1:]:
        each.weights[[0, 2]] = 0  # what zeros meet
    layers[0].weights[[0, 2]] = 0
    rows[:] = RNG.standard_normal(rows.shape)
    assert windows.beside_padded("net", layers, rows, 4, 2)["equal"]
    layers[0].weights[0] = 1
    assert windows.beside_padded("net", layers, rows, 4, 2)["deviation"] > 0.01


def test_frames_of_a_tone_are_loudest_at_its_mel() -> None:
    sound = np.sin(2 * np.pi * np.arange(RATE) * np.array([[300], [3000]]) / RATE)
    low, high = (windows.mel_frames(each.astype(np.float32)) for each in sound)
    assert low.shape == (98, 32, 1)
    assert low[50].argmax() < high[50].argmax()


def features(begins: dict[int, int], count: int) -> np.ndarray:
    """Frames of speech all about one place, and of each kind at one of its own."""
    shape = (memories.PATCHES, 8)
    kinds = RNG.standard_normal((len(memories.KINDS), *shape)) * 20
    frames = RNG.standard_normal((count + 3 * len(kinds), *shape))
    for kind, begin in begins.items():
        frames[begin : begin + 3] += kinds[kind]
        frames[count + 3 * kind : count + 3 * kind + 3] += kinds[kind]
    return frames.astype(np.float32)


def test_memories_answer_what_they_know(data: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    begins = {kind: 3 * kind for kind in range(len(memories.KINDS))}
    monkeypatch.setattr(memories, "hour", lambda *_: (np.zeros(1), begins))
    monkeypatch.setattr(memories, "frames_of", lambda _: features(begins, 120))
    line = ["--sounds", ".", "--minutes", "4", "--seeds", "2", "--record", "some"]
    assert memories.main(line) == 0
    found = recorded(data / "some.json")["rows"]
    assert [row[0] for row in found] == [6] * 6 + [60] * 6
    rows = {row[1]: row[2:] for row in found[:6]}
    assert rows["all frames"][1:] == [100, 0]
    assert rows["the newest frames"][1] == 0  # sounds were at the beginning
    assert rows["clusters"][0] <= memories.ROWS
    assert rows["means of clips"][0] == 120 / memories.CLIP
    assert rows["summaries of clips"][0] == 120 / memories.CLIP * memories.SUMMARY
    for name in ("means of clips", "summaries of clips"):  # 12.5% by chance
        assert rows[name][1] >= 50


def test_a_reservoir_keeps_all_with_equal_chances() -> None:
    kept = Counter(at for seed in range(400) for at in memories.reservoir(100, seed))
    assert len(kept) == 100
    assert 60 < min(kept.values()) <= max(kept.values()) < 145


def test_an_hour_has_its_sounds_where_it_says(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(memories, "read_sound", lambda path: np.zeros(61 * RATE, np.float32))
    (tmp_path / "a.wav").touch()
    (tmp_path / "b.wav").touch()
    sound, begins = memories.hour(tmp_path, 2, 5, 3)
    step = memories.SECONDS * RATE
    loud = {at for at in range(len(sound) // step) if np.abs(sound[at * step :][:step]).max() > 0}
    assert loud == {begin + frame for begin in begins.values() for frame in range(3)}
    assert not np.array_equal(memories.heard(0, 1, 2), memories.heard(0, 2, 2))
    assert memories.frames_of(sound).shape == (60, memories.PATCHES, 80)
    with pytest.raises(InvalidOption, match=r"has 2\.0 minutes of WAV"):
        memories.hour(tmp_path, 3, 5, 3)
