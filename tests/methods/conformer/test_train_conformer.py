"""Training of a conformer: torch beside the reference, a run that goes on, the command."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from tests.audio.test_read import write
from tests.listening.test_windows import noise
from tests.methods.conformer.test_conformer import LEFT, SHAPE, rows

from paceline.errors import InvalidOption
from paceline.methods.conformer.encoder import (
    BLANK,
    LETTERS,
    ConformerShape,
    ReferenceConformer,
    load_conformer,
    sight,
)
from paceline.methods.conformer.recipe import ConformerRecipe

torch = pytest.importorskip("torch")

from paceline.lab.training.run import TrainingRun  # noqa: E402
from paceline.methods.conformer import training  # noqa: E402
from paceline.methods.conformer.training import (  # noqa: E402
    ConformerTask,
    SpokenLetters,
    publish,
    read_letters,
)

RECIPE = ConformerRecipe(steps=8, batch=2, chunks="7,14")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    place: Path = tmp_path_factory.mktemp("letters")
    for number in range(20):
        pcm = (noise(0.6, number) * 32767).astype("<i2").tobytes()
        write(place / f"{number:02}.wav", pcm)
        (place / f"{number:02}.txt").write_text("Ab, 'c' --- d!")
    write(place / "without.wav", pcm)
    return place


def task(folder: Path, recipe: ConformerRecipe = RECIPE) -> ConformerTask:
    return ConformerTask(SHAPE, read_letters(folder), recipe)


def test_texts_are_letters(folder: Path, tmp_path: Path) -> None:
    found = read_letters(folder)
    assert len(found) == 20
    assert "".join(LETTERS[each] for each in found[0].letters) == "ab 'c' d"
    with pytest.raises(InvalidOption, match=r"no NAME\.wav"):
        read_letters(tmp_path)
    write(tmp_path / "1.wav", bytes(3200))
    (tmp_path / "1.txt").write_text("a")
    with pytest.raises(InvalidOption, match="20 or more"):
        read_letters(tmp_path)


def test_torch_hears_what_the_reference_hears(folder: Path) -> None:
    own = task(folder)
    assert (len(own.texts), len(own.held_out)) == (19, 1)
    reference = ReferenceConformer(SHAPE, own.numbers())
    first, second = rows(1), rows(2)[:40]
    with torch.no_grad():
        found = own.logits([first, second], 7).numpy()[..., : BLANK + 1]
    for x, made in ((first, found[0]), (second, found[1])):
        wanted = reference.forward(reference.open(), x, sight(0, len(x), 7, LEFT))
        assert np.allclose(made[: len(x)], wanted, atol=1e-3)


def test_a_run_learns_and_goes_on_to_the_same_numbers(folder: Path, tmp_path: Path) -> None:
    whole = TrainingRun(task(folder))
    losses = [each.loss for each in whole.run()]
    assert losses[-1] < losses[0]
    first = TrainingRun(task(folder), tmp_path / "checkpoint")
    for step in first.run():
        if step.step == 3:
            break
    first.save()
    second = TrainingRun(task(folder), tmp_path / "checkpoint")
    assert [each.loss for each in second.run()] == losses[3:]
    _, line = publish(second, tmp_path / "weights")
    assert "in chunks of 14" in line
    shape, numbers = load_conformer(tmp_path / "weights")
    assert shape == SHAPE
    assert np.array_equal(numbers["head"], second.task.numbers()["head"])


def test_the_command_trains(folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from paceline.methods.conformer import command

    monkeypatch.setattr(training, "_HELD_OUT", 10)
    out, recipe = tmp_path / "made.safetensors", ConformerRecipe(steps=1, chunks="7")
    command.conformer(data=folder, out=out, recipe=recipe, threads=1)
    assert load_conformer(out)[0] == ConformerShape()


def test_chunks_are_numbers() -> None:
    with pytest.raises(InvalidOption, match="chunks"):
        ConformerRecipe(chunks="0")
    assert SpokenLetters(Path("a"), (1,)).letters == (1,)
