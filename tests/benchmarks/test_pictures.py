"""Drawn pictures and their questions, and the training of what lets a text model see."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("torch")

import torch
from benchmarks.pictures.__main__ import main
from benchmarks.pictures.connector import Connector, ConnectorRecipe, ConnectorTask
from benchmarks.pictures.drafts import drafted
from benchmarks.pictures.files import config_json, publish, published
from benchmarks.pictures.scenes import COLOURS, KINDS, PLACES, SHAPES, Scene, ask, draw
from tests.helpers.pictures_tiny import FOLDER
from tests.helpers.tiny_model import save_directory, tiny_config

import paceline
from paceline.errors import InvalidOption
from paceline.lab.training.run import TrainingRun
from paceline.models.pictures import Picture, Pixels
from paceline.models.shown import PictureWords
from paceline.models.source import resolve
from paceline.models.towers import Tower, Vision
from paceline.registry.options import Options
from paceline.runtimes.torch.model import TorchModel

SIDE = 56
_TOWER = Tower("dinov2", 1, 32, 2, 64, SIDE, 14, 1e-6, "exact", False)
VISION = Vision(_TOWER, "mlp", 2, 64, (0.5,) * 3, (0.5,) * 3, "bicubic", token="<|endoftext|>")
RECIPE = ConnectorRecipe(steps=6, word_steps=0, batch=3, pictures=8, training_precision="fp32")


def scenes(count: int, *, held_out: bool = False) -> list[Scene]:
    return [draw(np.random.default_rng(each), SIDE, held_out=held_out) for each in range(count)]


def pairs(drawn: list[Scene]) -> set[tuple[str, str]]:
    return {(each.colour, each.shape) for scene in drawn for each in scene.things}


def test_held_out_pairs_are_in_no_other_scene() -> None:
    seen, others = pairs(scenes(2000)), pairs(scenes(2000, held_out=True)) - pairs(scenes(2000))
    assert len(seen) + len(others) == len(COLOURS) * len(SHAPES)
    assert len(others) == len(COLOURS) * len(SHAPES) // 8
    for scene in scenes(200, held_out=True):
        assert sum((each.colour, each.shape) in others for each in scene.things) == 1


def test_things_are_drawn_where_they_are_said_to_be() -> None:
    for scene in scenes(100):
        inked = (scene.pixels != scene.pixels[0, 0]).any(-1)
        third = SIDE / 3
        found = {
            place
            for place in range(len(PLACES))
            if inked[
                round(place // 3 * third) : round((place // 3 + 1) * third),
                round(place % 3 * third) : round((place % 3 + 1) * third),
            ].mean()
            > 0.05
        }
        assert found == {each.place for each in scene.things}
        assert len({each.name for each in scene.things}) == len(scene.things)


def test_a_scene_is_a_function_of_its_seed() -> None:
    first, again, other = (draw(np.random.default_rng(each), SIDE) for each in (3, 3, 4))
    np.testing.assert_array_equal(first.pixels, again.pixels)
    assert first.things == again.things != other.things


def test_answers_are_right() -> None:
    rng, counts = np.random.default_rng(0), dict.fromkeys(KINDS, 0)
    for scene in scenes(300):
        for kind in KINDS:
            question = ask(rng, scene, kind)
            if question is None:
                continue
            counts[kind] += 1
            said = [each for each in scene.things if each.name in question.asked]
            if kind == "place":
                assert question.answer == f"The {said[0].name} is {PLACES[said[0].place]}."
            elif kind == "side":
                first, second = sorted(said, key=lambda each: question.asked.index(each.name))
                by = 0 if "above" in question.asked or "below" in question.asked else 1
                less = divmod(first.place, 3)[by] < divmod(second.place, 3)[by]
                wanted = "above" in question.asked or "left of" in question.asked
                assert question.answer == ("Yes." if less == wanted else "No.")
            elif kind in ("colour", "shape"):
                words = question.answer[4:-1].split(" is ")
                one = next(e for e in scene.things if [e.shape, e.colour] == words)
                same = [e for e in scene.things if e != one and {e.shape, e.colour} & {*words}]
                asked_by = "shape" if kind == "colour" else "colour"
                assert all(getattr(e, asked_by) not in words for e in same)
            elif kind == "what":
                asked = {f"What is {PLACES[each.place]}?": each for each in scene.things}
                one = asked[question.asked]
                assert question.answer == f"A {one.name} is {PLACES[one.place]}."
            elif kind == "describe":
                told = [f"The {each.name} is {PLACES[each.place]}." for each in scene.things]
                assert question.answer.split(". ", 1)[1] == " ".join(told)
    assert min(counts.values()) > 150


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_directory(tmp_path_factory.mktemp("text"), tiny_config())


@pytest.fixture
def task(model: Path, tmp_path: Path) -> Callable[..., ConnectorTask]:
    source = resolve(str(model))
    text = TorchModel(source.config, source.weights(), torch.device("cpu"), torch.float32)

    def look(pixels: Pixels) -> Any:
        # What a tower would see: numbers of the pixels of a square.
        squares = pixels.reshape(2, 28, 2, 28, 3).astype(np.float32) / 255
        return np.resize(squares.transpose(0, 2, 1, 3, 4).reshape(4, -1)[:, ::18], (4, 128))

    def make(start: Any = None, **changes: Any) -> ConnectorTask:
        tokenizer = source.tokenizer()
        tokenizer.pictures = PictureWords.of(VISION, tokenizer.special_ids)
        recipe = replace(RECIPE, **changes)
        return ConnectorTask(recipe, text, tokenizer, VISION, look, tmp_path / "seen.npy", start)

    return make


def test_questions_about_a_picture_do_not_see_one_another(
    task: Callable[..., ConnectorTask],
) -> None:
    one = task()
    texts = one.batch(0)
    rows = torch.randn((3, 4, 64), generator=torch.Generator().manual_seed(0))
    logits, labels, whose = one._answers(texts, rows)
    order = list(dict.fromkeys(each.index for each in texts))
    for number, text in enumerate(texts):
        mine = rows[[order.index(text.index)]]
        alone, told, _ = one._answers([text], mine)
        assert told.tolist() == labels[whose == number].tolist()
        np.testing.assert_allclose(logits[whose == number], alone, atol=2e-4)
    other = one._answers(texts, rows.flip(0))[0]
    assert (other - logits).abs().max() > 0.01  # rows matter


def test_halves_have_the_gradient_of_the_whole(task: Callable[..., ConnectorTask]) -> None:
    one = task()
    texts = one.batch(1)
    matrix = one.connector.get_parameter("first")
    ((loss, value),) = one.losses(texts, 1)
    (found,) = torch.autograd.grad(loss, matrix)
    numbers = dict.fromkeys(each.index for each in texts)
    rows = one.connector(torch.stack([one._saw(each) for each in numbers]))
    logits, labels, whose = one._answers(texts, rows)
    each = torch.nn.functional.cross_entropy(logits, labels, reduction="none")
    whole = torch.stack([each[whose == of].mean() for of in range(len(texts))]).mean()
    np.testing.assert_allclose(value, float(whole.detach()), rtol=1e-5)
    (expected,) = torch.autograd.grad(whole, matrix)
    np.testing.assert_allclose(found, expected, atol=1e-6)


def test_a_run_that_was_cut_goes_on(task: Callable[..., ConnectorTask], tmp_path: Path) -> None:
    whole = TrainingRun(task())
    losses = [each.loss for each in whole.run()]
    first = TrainingRun(task(), tmp_path / "cut.checkpoint")
    part = [next(steps).loss for steps in [first.run()] for _ in range(3)]
    first.save()
    rest = TrainingRun(task(), tmp_path / "cut.checkpoint")
    assert part + [each.loss for each in rest.run()] == losses
    with pytest.raises(InvalidOption, match="other settings"):
        TrainingRun(task(batch=2), tmp_path / "cut.checkpoint")


def test_words_learn_before_the_connector_says_them(
    task: Callable[..., ConnectorTask], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("benchmarks.pictures.connector._NAMING", 20)
    one = task(word_steps=3, steps=2)
    words, matrix = one.words.words, one.connector.get_parameter("first")
    course = []
    run = TrainingRun(one, tmp_path / "words.checkpoint")
    for each in run.run():
        course.append((each.loss, words.detach().clone(), matrix.detach().clone()))
        if each.step == 3:
            run.save()
    assert len(course) == 5
    assert all((a[1] != b[1]).any() for a, b in pairwise(course[:3]))
    assert all((a[2] == b[2]).all() for a, b in pairwise(course[:3]))
    assert all((each[1] == course[2][1]).all() for each in course[3:])
    assert all((a[2] != b[2]).any() for a, b in pairwise(course[2:]))
    again = TrainingRun(task(word_steps=3, steps=2), tmp_path / "words.checkpoint")
    assert [each.loss for each in again.run()] == [each[0] for each in course[3:]]


def test_words_stand_where_things_are(task: Callable[..., ConnectorTask]) -> None:
    one = task()
    said = np.array([[-1, -1, -1], [2, 0, 4], [-1, -1, -1], [2, 0, 4]])
    rows = one.words(said).detach()
    words = one.words.words.detach()
    for row, role in ((1, 1), (3, 3)):
        mine = words[role, [2, len(COLOURS), len(COLOURS) + len(SHAPES) + 4]]
        np.testing.assert_allclose(rows[row], mine.sum(0), atol=1e-6)
    assert not rows[[0, 2]].any()


def test_it_begins_as_words_for_what_covers_a_square(task: Callable[..., ConnectorTask]) -> None:
    one = task()
    before = [one.connector(one._saw(each)).detach() for each in range(8)]
    one.begin()
    wanted = [one._said(each).detach() for each in range(8)]
    after = [one.connector(one._saw(each)).detach() for each in range(8)]
    away, was = (
        sum(float((row - told).square().mean()) for row, told in zip(rows, wanted, strict=True))
        for rows in (after, before)
    )
    assert away < 0.8 * was


def test_folded_matrices_are_the_connector() -> None:
    one = Connector(8, 6, torch.Generator().manual_seed(0))
    one.get_buffer("mean").normal_()
    one.get_buffer("spread").uniform_(0.5, 2)
    seen, part = torch.randn(5, 8), one.folded()
    inner = torch.nn.functional.gelu(seen @ part["first"].T + part["first.bias"])
    expected = inner @ part["second"].T + part["second.bias"]
    np.testing.assert_allclose(one(seen).detach(), expected, atol=1e-5)
    other = Connector(8, 6, torch.Generator().manual_seed(1))
    other.get_buffer("mean").normal_()
    assert (other(seen) - expected).abs().max() > 0.1
    other.unfold(part)
    np.testing.assert_allclose(other(seen).detach(), expected, atol=1e-5)


def test_it_is_published_as_what_an_mmproj_names(
    task: Callable[..., ConnectorTask], model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("benchmarks.pictures.connector.JUDGED", 2)
    monkeypatch.setattr("benchmarks.pictures.connector._NAMING", 20)
    run, source = TrainingRun(task(steps=2)), resolve(str(model))
    list(run.run())
    figures, line = publish(run, tmp_path / "out", source, "the command")
    assert set(figures["held_out"]) == {"new scenes", "new pairs", "rows of zeros"}
    assert "the command" in (tmp_path / "out" / "README.md").read_text()
    said = json.loads((tmp_path / "out" / "config.json").read_text())
    assert said == config_json(source)
    assert said["rows_for"]["fingerprint"] == source.fingerprint
    assert "right answers" in line
    found = published(tmp_path / "out")
    expected = run.task.connector.folded()
    for name, each in found.items():
        np.testing.assert_allclose(each.float(), expected[name], atol=2e-3)
    again = task(steps=2, start=found)
    again.begin()
    row = torch.randn(4, 128)
    np.testing.assert_allclose(
        again.connector(row).detach(), run.task.connector(row).detach(), atol=0.03
    )


def test_drafts_behind_pictures_and_texts_are_counted(tmp_path: Path) -> None:
    assert main(["prompts", "--out", str(tmp_path), "--count", "3", "--held-out", "4"]) == 0
    assert len((tmp_path / "train.jsonl").read_text().splitlines()) == 3
    first, *_ = (tmp_path / "held.jsonl").read_text().splitlines()
    assert (tmp_path / json.loads(first)["image"]).is_file()
    asked = ["no drafts=none", "prompt-lookup"], tmp_path / "held.jsonl", 4, 24
    rows = drafted(*asked, Options(model=str(FOLDER), threads=1))
    assert [row[:2] for row in rows] == [
        [label, kind] for label in ("no drafts", "prompt-lookup") for kind in ("pictures", "texts")
    ]
    assert all(row[5:] == [4, 4] for row in rows)  # texts are the same
    assert all(row[2:5] == [1.0, 1.0, 1.0] for row in rows[:2])
    assert any(row[2] > 1 for row in rows[2:])
    assert all(row[3] <= row[2] <= row[4] for row in rows)


def test_what_is_wrong_is_one_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    nowhere = str(tmp_path / "nowhere")
    assert main(["ask", "--mmproj", nowhere]) == 2
    assert main(["drafts", "--mmproj", nowhere, "--held", nowhere, "none"]) == 2
    told = capsys.readouterr().err.splitlines()
    assert len(told) == 2
    assert all(nowhere in line for line in told)


@pytest.mark.real
def test_the_connector_that_ships_sees(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    asked, shown, others = [], [], []
    for number in range(12):
        rng = np.random.default_rng((9, number))
        scene, other = draw(rng, 224), draw(rng, 224)
        for kind in ("colour", "shape", "place"):
            if (question := ask(rng, scene, kind)) is not None:
                asked.append(question)
                shown.append(scene)
                others.append(other)
    engine = paceline.load(mmproj="pictures-135m", drafter="prompt-lookup", max_batch=8)

    def right(scenes: list[Scene]) -> float:
        chats = [
            [{"role": "user", "content": [image(scene), {"type": "text", "text": each.asked}]}]
            for scene, each in zip(scenes, asked, strict=True)
        ]
        said = engine.generate(chats, max_new_tokens=32, temperature=0.0)
        return float(np.mean([a.text == b.answer for a, b in zip(said, asked, strict=True)]))

    assert right(shown) > 0.75
    assert right(others) < 0.4  # what is not shown is not known


def image(scene: Scene) -> dict[str, Any]:
    return {"type": "image", "image": Picture(scene.pixels)}
