"""Factors for a causal Whisper: torch beside the reference, what is learned, and the adapter."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tokenizers
from tests.audio.test_read import write
from tests.helpers.tiny_whisper import WhisperWeights, sound, tiny_whisper
from tests.listening.test_windows import engine, noise

from paceline.core.target import Rows
from paceline.errors import InvalidOption
from paceline.methods.careless.captions import chunk_ends
from paceline.methods.careless.recipe import CausalRecipe
from paceline.methods.careless.spoken import Spoken, read_spoken, word_ends
from paceline.models.adapters import AdaptedWeights, LoraAdapter
from paceline.models.text import Tokenizer
from paceline.runtimes.reference.target import ReferenceTarget

torch = pytest.importorskip("torch")

from paceline.lab.training.run import TrainingRun  # noqa: E402
from paceline.methods.careless.training import (  # noqa: E402
    CausalTask,
    CausalWhisper,
    adapted,
    publish,
)

CONFIG = tiny_whisper()
RECIPE = CausalRecipe(steps=4, rank=4, rate=0.01, chunks="5,10")


def pcm(sound: np.ndarray) -> bytes:
    return (sound * 32767).astype("<i2").tobytes()


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    place: Path = tmp_path_factory.mktemp("spoken")
    for number, text in enumerate(("w1 w2 w3", "w4 w5", "w6 w7 w8 w9")):
        write(place / f"{number}.wav", pcm(noise(0.8, number)))
        (place / f"{number}.txt").write_text(text)
    write(place / "long.wav", pcm(noise(3.0)))
    (place / "long.txt").write_text("w1")
    write(place / "silent.wav", pcm(noise(0.5)))
    return place


def words() -> Tokenizer:
    known = {f"w{number}": number for number in range(40)}
    core = tokenizers.Tokenizer(tokenizers.models.WordLevel(known, unk_token="w0"))
    core.pre_tokenizer = tokenizers.pre_tokenizers.Whitespace()
    return Tokenizer(core, eos_token_ids=(40,))


def spoken(folder: Path) -> list[Spoken]:
    return read_spoken(folder, words(), 2.0)


def task(folder: Path, recipe: CausalRecipe = RECIPE) -> CausalTask:
    sounds = spoken(folder)
    return CausalTask(CONFIG, WhisperWeights(CONFIG), sounds, sounds[:1], [41, 48], 40, recipe)


def test_torch_hears_what_the_reference_hears() -> None:
    weights, frames, sees = WhisperWeights(CONFIG), sound(1)[:60], chunk_ends(0, 30, 10)
    reference = ReferenceTarget(CONFIG, weights, "fp32")
    tokens = [5, 40, 13, 2]
    whisper = CausalWhisper(CONFIG, weights, {})
    with torch.no_grad():
        memory = whisper.hear(torch.from_numpy(np.stack([sound(2)[:60], frames])), sees)
        texts = torch.tensor([tokens] * 4)
        found = whisper.logits(texts, memory, torch.tensor([30, 10, 30, 20]))
    for row, rows in ((2, 30), (3, 20)):
        heard = reference.hear(frames[: 2 * rows], chunk_ends(0, rows, 10))
        cache = reference.open_to(heard.memory)
        [out] = reference.forward([Rows.draft(cache, tokens, wanted=np.arange(4))])
        assert np.allclose(found[row].numpy(), out.logits, atol=1e-4)
    assert not np.allclose(found[2], found[3], atol=1e-2)


def test_words_end_where_their_letters_do() -> None:
    sound = noise(2.0, 1)
    sound[8000:16000] = 0
    ends = word_ends(sound, ["aaaa", "bbbb,", "-", "cccc"])
    assert np.all(np.diff(ends) >= 0)
    assert ends[-1] == 2.0
    assert 0.4 < ends[0] < 0.8
    assert ends[1] > 1.0  # behind the pause
    assert np.array_equal(word_ends(np.zeros(3200, np.float32), ["a", "b"]), [0.11, 0.11])


def test_sounds_without_texts_and_long_ones_are_left_out(folder: Path, tmp_path: Path) -> None:
    found = spoken(folder)
    assert [each.path.stem for each in found] == ["0", "1", "2"]
    assert found[0].tokens == (1, 2, 3)
    assert len(found[0].ends) == 3
    with pytest.raises(InvalidOption, match=r"no NAME\.wav with a NAME\.txt"):
        read_spoken(tmp_path, words(), 2.0)


def test_a_run_learns_and_goes_on_to_the_same_numbers(folder: Path, tmp_path: Path) -> None:
    recipe = CausalRecipe(steps=12, rank=4, rate=0.02, chunks="5,10")
    whole = TrainingRun(task(folder, recipe))
    before = whole.task.judge()
    losses = [each.loss for each in whole.run()]
    after = whole.task.judge()
    assert after.loss < before.loss
    assert after.right >= before.right
    first = TrainingRun(task(folder, recipe), tmp_path / "checkpoint")
    for step in first.run():
        if step.step == 5:
            break
    first.save()
    second = TrainingRun(task(folder, recipe), tmp_path / "checkpoint")
    assert second.resumed
    assert [each.loss for each in second.run()] == losses[5:]


def test_the_adapter_is_what_was_trained(folder: Path, tmp_path: Path) -> None:
    run = TrainingRun(task(folder))
    assert len([*run.run()]) == 4
    figures, line = publish(run, tmp_path / "out", CONFIG, "tiny", "paceline train causal")
    assert "loss" in line
    assert figures["held_out"]["sounds"] == 1
    card = json.loads((tmp_path / "out" / "card.json").read_text())
    assert card["settings"]["chunks"] == "5,10"
    base: Any = WhisperWeights(CONFIG)
    adapter = LoraAdapter(str(tmp_path / "out"))
    factors = adapter.of(CONFIG, base, "tiny")
    assert sorted(factors) == sorted(adapted(CONFIG))
    frames, sees, tokens = sound(3)[:60], chunk_ends(0, 30, 5), [5, 40, 13]
    with torch.no_grad():
        whisper = CausalWhisper(CONFIG, base, run.task.factors)
        memory = whisper.hear(torch.from_numpy(frames)[None], sees)
        found = whisper.logits(torch.tensor([tokens]), memory, torch.tensor([30]))[0].numpy()
    logits = []
    for weights in (AdaptedWeights(base, [factors]), base):
        target = ReferenceTarget(CONFIG, weights, "fp32")
        cache = target.open_to(target.hear(frames, sees).memory)
        [out] = target.forward([Rows.draft(cache, tokens, wanted=np.arange(3))])
        logits.append(out.logits)
    assert np.allclose(found, logits[0], atol=0.02)  # factors are stored in float16
    assert not np.allclose(found, logits[1], atol=0.1)


def test_chunks_are_numbers() -> None:
    with pytest.raises(InvalidOption, match="chunks"):
        CausalRecipe(chunks="5,x")


def test_the_command_trains_what_a_model_lacks(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from paceline.cli import options
    from paceline.methods.careless import command
    from paceline.registry.options import Options

    class Source:
        config, name, path = CONFIG, "tiny", None

        def weights(self) -> Any:
            return WhisperWeights(CONFIG)

    own = engine(rows=75)
    monkeypatch.setattr(options, "load", lambda asked: (own, Source()))
    asked, out = Options(model="tiny", threads=1), tmp_path / "factors"
    with pytest.raises(InvalidOption, match="40 or more"):
        command.causal(data=folder, out=out, recipe=RECIPE, asked=asked)
    monkeypatch.setattr(command, "_HELD_OUT", 3)
    monkeypatch.setattr(command, "_LONGEST", 1.0)
    command.causal(data=folder, out=out, recipe=RECIPE, asked=asked)
    assert sorted(each.name for each in out.iterdir()) == [
        "README.md",
        "adapter_config.json",
        "adapter_model.safetensors",
        "card.json",
    ]
