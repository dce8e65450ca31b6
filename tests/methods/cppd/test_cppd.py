"""CPPD: one pass over a picture of a word, what it learns, and its file."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import matplotlib
import numpy as np
import pytest
import torch
from PIL import ImageFont

from paceline.errors import InvalidOption, ModelError
from paceline.lab.training.run import TrainingRun
from paceline.methods.cppd import command
from paceline.methods.cppd.recipe import CPPDRecipe
from paceline.methods.cppd.recogniser import (
    CLASSES,
    COLUMN,
    CPPD,
    HEIGHT,
    LONGEST,
    WIDTH,
    CPPDShape,
    load_recogniser,
    save_recogniser,
    spelt,
)
from paceline.methods.cppd.training import CPPDTask, Spelling
from paceline.methods.cppd.words import apart, draw, drawn, load_fonts, words_of

SMALL = CPPDShape(32, tower=1, layers=1)
FONTS = sorted(Path(matplotlib.get_data_path(), "fonts", "ttf").glob("DejaVuS*.ttf"))
WORDS = [f"{a}{b}" for a in ("cat", "sat", "mat", "0") for b in ("", "s", "ab", "xyz", "7", "q")]


def model() -> CPPD:
    torch.manual_seed(0)
    return CPPD(SMALL).eval()


def pictures(words: list[str], seed: int = 0) -> np.ndarray:
    font, rng = ImageFont.load_default(40), np.random.default_rng(seed)
    assert isinstance(font, ImageFont.FreeTypeFont)
    return np.stack([draw(each, font, rng)[0] for each in words])


def task(**recipe: Any) -> CPPDTask:
    chosen = CPPDRecipe(**{"steps": 40, "batch": 16, "vector_rate": 3e-3, **recipe})
    return CPPDTask(SMALL, WORDS, load_fonts(FONTS[:2]), chosen)


def test_words_are_drawn_as_their_seed_says_and_fit() -> None:
    assert words_of("The cat's 2nd HAT; naïve " + "x" * 26) == [
        "2nd",
        "cat",
        "hat",
        "na",
        "s",
        "the",
        "ve",
    ]
    once, again = pictures(["word", "i", "w" * 25]), pictures(["word", "i", "w" * 25])
    assert once.shape == (3, HEIGHT, WIDTH)
    assert once.dtype == np.uint8
    assert np.array_equal(once, again)
    assert not np.array_equal(once, pictures(["word", "i", "w" * 25], 1))
    assert all(np.ptp(each) > 60 for each in once)
    learnt, held = apart(list(map(str, range(45))))
    assert held == ["19", "39"]
    assert not {*learnt} & {*held}
    assert len(learnt) == 43
    with pytest.raises(InvalidOption, match="a font cannot be read"):
        load_fonts([Path(__file__)])


def test_columns_know_what_stands_there() -> None:
    fonts, words = load_fonts(FONTS[:2]), ["no", "i", "tap"] * 8
    shown = drawn(words, fonts, (0, 1))
    assert np.array_equal(shown.pictures, drawn(words, fonts, (0, 1)).pictures)
    assert not np.array_equal(shown.pictures, drawn(words, fonts, (0, 2)).pictures)
    columns = shown.pictures.reshape(24, HEIGHT, -1, COLUMN).astype(float).std((1, 3))
    for word, places, ink in zip(words, shown.places, columns, strict=True):
        assert set(places.tolist()) - {-1} == set(range(len(word) + 1))
        assert (np.diff(places) >= 0).all()
        behind = np.flatnonzero(places == len(word))[1:]
        assert ink[behind].max() < 16 < ink[(places >= 0) & (places < len(word))].mean()


def test_reading_is_one_pass_and_counting_has_no_say_in_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    own, shown = model(), pictures(["a", "word", "w" * 25])
    passes: list[int] = []
    own.tower.register_forward_hook(lambda *_: passes.append(1))
    read = own.read(shown)
    assert passes == [1]
    whole = own(torch.from_numpy(shown).float())
    assert read == [spelt(each) for each in whole.characters.argmax(-1).tolist()]
    assert whole.counts.shape == (3, CLASSES, LONGEST)
    assert whole.filled.shape == (3, LONGEST + 1)
    # A picture is read as it is alone.
    assert torch.allclose(
        own(torch.from_numpy(shown[1:2]).float()).characters, whole.characters[1:2], atol=1e-5
    )
    assert spelt([11, 1, 0, 12]) == "a0"
    assert spelt([11, 12]) == "ab"


def test_what_words_teach() -> None:
    found = Spelling.of(["aab", "0", "z" * 25])
    assert found.classes[0].tolist() == [11, 11, 12, 0, *[-1] * 22]
    assert spelt(found.classes[2].tolist()) == "z" * 25
    assert found.counts[0].nonzero().flatten().tolist() == [0, 11, 12]
    assert found.counts[0, [0, 11, 12]].tolist() == [1, 2, 1]
    assert found.counts[2, CLASSES - 1] == LONGEST - 1  # the most that is counted
    assert found.filled.sum(1).tolist() == [3, 1, 25]


def test_it_learns_and_goes_on_as_it_would_have(tmp_path: Path) -> None:
    run = TrainingRun(task(), tmp_path / "whole")
    losses = [step.loss for step in run.run()]
    assert np.mean(losses[-5:]) < 0.8 * np.mean(losses[:5])
    assert 0 <= run.task.judge().right <= 1
    first = TrainingRun(task(), tmp_path / "half")
    for step in first.run():
        if step.step == 20:
            break
    first.save()
    second = TrainingRun(task(), tmp_path / "half")
    assert [step.loss for step in second.run()] == losses[20:]
    ours, theirs = (each.task.module.state_dict() for each in (run, second))
    assert all(torch.equal(ours[name], theirs[name]) for name in ours)


def test_a_file_holds_what_was_trained(tmp_path: Path) -> None:
    own, shown = model(), pictures(["word"])
    save_recogniser(tmp_path / "a.safetensors", own)
    assert load_recogniser(tmp_path / "a.safetensors").read(shown) == own.read(shown)
    save_recogniser(tmp_path / "b.safetensors", own)
    from safetensors.torch import save_file

    save_file({"x": torch.zeros(2)}, tmp_path / "b.safetensors", {"cppd": '{"width": 32}'})
    with pytest.raises(ModelError, match="holds no CPPD"):
        load_recogniser(tmp_path / "b.safetensors")
    with pytest.raises(InvalidOption, match="width must be a multiple of 32"):
        CPPDShape(40)
    with pytest.raises(InvalidOption, match="fonts must be 1 or more"):
        CPPDTask(SMALL, WORDS, [], CPPDRecipe())


def test_the_command_trains(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "words.txt").write_text(" ".join(WORDS))
    recipe = CPPDRecipe(steps=2, batch=4)
    out = tmp_path / "mine.safetensors"
    command.cppd(
        [tmp_path / "words.txt"], fonts=FONTS[:1], width=32, out=out, recipe=recipe, as_json=True
    )
    found = json.loads(capsys.readouterr().out)
    assert found["held_out"].keys() == {"right", "in_order"}
    assert load_recogniser(out).shape.width == 32
