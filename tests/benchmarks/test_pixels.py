"""Pixels: two models are trained for a step, and every way of drawing is told."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from benchmarks import pixels
from paceline.drafters.base import NoDrafter
from paceline.lab.measure import results
from paceline.methods.jacobi import Jacobi
from paceline.verifiers.matching import Coupled


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    found = {}
    for order in ("lines", "neighbours"):
        found[order] = tmp_path_factory.mktemp(order)
        step = ["--steps", "1", "--batch", "2", "--out", str(found[order])]
        assert pixels.main(["train", "--order", order, *step]) == 0
    return found


def test_pictures_are_drawn_by_seed_and_differ() -> None:
    drawn = [pixels.picture(np.random.default_rng(seed)) for seed in (1, 1, 2)]
    assert np.array_equal(drawn[0], drawn[1])
    assert not np.array_equal(drawn[0], drawn[2])
    assert set(np.unique(drawn)) <= set(range(pixels.LEVELS))


def test_windows_draw_the_picture_of_plain_decoding_with_shared_noise(
    folders: dict[str, Path],
) -> None:
    target = pixels.loaded(folders["lines"])
    plain, forwards = pixels.draw(target, NoDrafter(), Coupled(), 8, 3)
    drafter = Jacobi(pixels.LEVELS + 1, needs_q=False, initial=pixels.repeating(pixels.SIDE))
    again, fewer = pixels.draw(target, drafter, Coupled(), 8, 3)
    assert np.array_equal(plain, again)
    assert fewer < forwards == pixels.PIXELS
    other, _ = pixels.draw(target, NoDrafter(), Coupled(), 8, 4)
    assert not np.array_equal(plain, other)


def test_first_guesses_repeat_what_is_committed() -> None:
    class Drawn:
        tokens = (4, 0, 1, 2)

    drawn: Any = Drawn()
    initial = pixels.repeating(3)
    guesses = [int(initial(drawn, position).dense().argmax()) for position in (4, 5, 6, 7)]
    assert guesses == [0, 1, 2, 0]


def test_ways_are_told(
    folders: dict[str, Path],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "docs/results/data").mkdir(parents=True)
    paths = [f"--{order}={folder}" for order, folder in folders.items()]
    assert pixels.main(["measure", *paths, "--pictures", "2", "--record", "made", "--json"]) == 0
    rows = json.loads(capsys.readouterr().out)
    assert [row["forwards"] for row in (rows[0], rows[-1])] == [256, 31]
    same = [row["pictures of plain decoding"] for row in rows]
    assert same[:3] == ["2 of 2"] * 3
    assert same[3:] == ["0 of 2"] * 3
    results.validate("made", json.loads((tmp_path / "docs/results/data/made.json").read_text()))
