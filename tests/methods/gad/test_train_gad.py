"""Training of drafters that hear: windows that are kept, glancing, and what is trained drafts."""

from __future__ import annotations

import json
import math
import wave
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from tests.helpers.tiny_whisper import WhisperWeights
from tests.listening.test_windows import engine, noise
from tests.methods.gad.heard import CONFIG, IDS, cpu, network, opened

from paceline.audio.mel import RATE
from paceline.cli import options
from paceline.errors import InvalidOption
from paceline.lab.training.recipe import DrafterRecipe
from paceline.lab.training.run import TrainingRun
from paceline.lab.training.vocabulary import DraftVocabulary
from paceline.listening import windows as listening
from paceline.methods.gad import training
from paceline.methods.gad.command import gad
from paceline.methods.gad.training import BlockTask, HeardTask, RowsTask
from paceline.methods.gad.windows import KeptWindows, _write
from paceline.models.ops import KV
from paceline.networks.runner import ContextUpdate
from paceline.networks.weights import load_network
from paceline.registry.options import Options

LENGTH = 20


@pytest.fixture(scope="module")
def kept(tmp_path_factory: pytest.TempPathFactory) -> KeptWindows:
    """Two sounds, and transcripts of all draft tokens, over and over."""
    folder = tmp_path_factory.mktemp("windows")
    rng, found = np.random.default_rng(0), KeptWindows(folder, "tiny")
    for seed in (0, 1):
        tokens = [41, 42, *rng.permutation(IDS)[: LENGTH - 2].tolist()]
        cache = opened(cpu(), seed)
        _write(folder / f"s-{seed}.npz", cpu(), cache, tokens, 2)
        cpu().release(cache)
    (folder / "s.done").touch()
    found.__dict__["_paths"] = found._paths * 21
    return found


def task(name: str, kept: KeptWindows, **recipe: Any) -> HeardTask:
    kinds: dict[str, type[HeardTask]] = {"gad": BlockTask, "gad-ctc": RowsTask}
    embedding = cpu().matrices._weights["embed"]
    vocabulary = DraftVocabulary(IDS, CONFIG.vocab_size, 1.0)
    chosen = DrafterRecipe(**{"tokens": 1000, "batch_tokens": 2 * LENGTH, **recipe})
    made: Any = kinds[name]
    out: HeardTask = made(network(name), kept, vocabulary, embedding, embedding, chosen)
    return out


def written(file: Path) -> None:
    """A second of noise."""
    with wave.open(str(file), "wb") as out:
        out.setnchannels(1)
        out.setsampwidth(2)
        out.setframerate(RATE)
        out.writeframes((noise(1.0) * 32767).astype("<i2").tobytes())


def test_windows_are_kept_once_and_of_one_model(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(listening, "_SURE", -math.inf)  # a random model repeats itself
    monkeypatch.setattr(listening, "_CIRCLES", math.inf)
    own, file = engine(), tmp_path / "a.wav"
    written(file)
    found = KeptWindows(tmp_path / "data", "m")
    [count] = found.hear([file], own)
    assert count > 0
    assert list(found.hear([file], own)) == []
    texts = found.texts()
    assert len(texts) == count
    assert texts[0].tokens[: texts[0].prompt_length].tolist() == [41]  # of an English model
    assert len(found.read(texts[0], "features")) == len(texts[0].tokens)
    looked_at, rows = (found.read(texts[0], part) for part in ("looked_at", "rows"))
    assert looked_at.shape[:3] == (2, 1500, 2)
    assert rows.shape == (375, 2 * 64)
    assert np.array_equal(rows, looked_at[1, ::4].reshape(375, -1))
    digest = KeptWindows(tmp_path / "data", "m").digest()
    assert digest == found.digest()
    (tmp_path / "data" / "half-00000.npz").write_bytes(b"cut")  # of a sound that was not finished
    assert KeptWindows(tmp_path / "data", "m").digest() == digest
    with pytest.raises(InvalidOption, match="holds windows of another model: give another --data"):
        KeptWindows(tmp_path / "data", "n")
    (tmp_path / "taken").touch()
    with pytest.raises(InvalidOption, match="cannot use"):
        KeptWindows(tmp_path / "taken", "m")


def test_what_is_trained_is_what_drafts(kept: KeptWindows, tmp_path: Path) -> None:
    made = task("gad", kept)
    assert isinstance(made, BlockTask)
    text = kept.texts()[0]
    features, at = kept.read(text, "features"), 6
    _, _, logits, _ = made._drafted([text], np.array([[at, 3]]))
    runner = cpu().run_network(load_network(made.save(tmp_path / "w", {"model": "tiny"})))
    cache = opened(cpu(), 0)
    update = ContextUpdate(
        runner.open(), features[: at + 1], text.tokens[1 : at + 2].tolist(), cache
    )
    [root] = runner.start([update])
    assert np.allclose(root.logits, logits[0, 0].detach().numpy(), atol=0.05)
    assert not np.allclose(root.logits, logits[0, 1].detach().numpy(), atol=0.05)
    cpu().release(cache)


def test_the_second_pass_is_shown_answers_and_learns_the_others(kept: KeptWindows) -> None:
    made, text = task("gad", kept), kept.texts()[0]
    assert isinstance(made, BlockTask)
    anchors = np.array([[1, 5, LENGTH - 4]])
    found = [
        made._drafted([text], anchors, share, torch.Generator().manual_seed(0))
        for share in (0.0, 0.5, 1.0)
    ]
    _, right, plain, shown = found[0]
    ids = np.concatenate([IDS, [-1]])
    assert ids[right[0, 1]].tolist() == text.tokens[7:12].tolist()
    assert ids[right[0, 2]].tolist() == [*text.tokens[LENGTH - 2 :].tolist(), -1, -1, -1]
    assert not shown.any()
    wrong = (plain.argmax(-1) != right) & (right >= 0)
    for share, (_, _, logits, told) in zip((0.5, 1.0), found[1:], strict=True):
        assert told.sum(-1).tolist() == (share * wrong.sum(-1)).round().tolist()
        assert not (told & (right < 0)).any()
        assert not torch.equal(logits, plain)


def test_the_look_is_that_of_its_layer(kept: KeptWindows) -> None:
    looked_at = torch.from_numpy(kept.read(kept.texts()[0], "looked_at")[None])
    attention = training.AtAnchors(torch.zeros(1, 1, dtype=torch.long), looked_at)
    heads = network("gad").config.heads
    queries = torch.randn(1, 1, 5, heads, CONFIG.head_dim)
    from paceline.models.families.base import heads_of
    from paceline.networks.torch_ops import Qkv

    shape = heads_of(network("gad").config, 0)
    empty = queries[..., :0, :]
    for layer in (-2, -1):
        found = attention.attend(KV(layer, memory=True), Qkv(queries, empty, empty), shape, "root")
        keys, values = looked_at[0, layer].unbind(1)
        scores = torch.einsum("shd,rhd->hsr", queries[0, 0], keys) * shape.scale
        by_hand = torch.einsum("hsr,rhd->shd", scores.softmax(-1), values)
        assert torch.allclose(found[0, 0], by_hand, atol=1e-4)


@pytest.mark.parametrize("name", ["gad", "gad-ctc"])
def test_it_learns_two_transcripts(name: str, kept: KeptWindows, tmp_path: Path) -> None:
    made = task(name, kept, tokens=60 * 2 * LENGTH, rate=0.02)
    run = TrainingRun(made, tmp_path / "checkpoint")
    losses = [step.loss for step in run.run()]
    assert np.mean(losses[-5:]) < 0.7 * np.mean(losses[:5])
    judged = made.judge()
    assert judged.hits.starts > 0
    assert judged.loss < losses[0]
    run.close()


def test_few_windows_are_refused(tmp_path: Path) -> None:
    found = KeptWindows(tmp_path / "none", "tiny")
    with pytest.raises(InvalidOption, match=r"0 texts are too few .* 41 or more by more sounds"):
        task("gad", found)


def test_the_command_hears_trains_and_writes_a_card(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(listening, "_SURE", -math.inf)
    monkeypatch.setattr(listening, "_CIRCLES", math.inf)
    many = property(lambda self: sorted(self._folder.glob("*.npz")) * 41)
    monkeypatch.setattr(KeptWindows, "_paths", many)
    own, file, out = engine(), tmp_path / "a.wav", tmp_path / "mine.safetensors"
    written(file)
    config = own.decoder.target.config  # type: ignore[attr-defined]
    source = SimpleNamespace(
        config=config, fingerprint="m", name="tiny", weights=lambda: WhisperWeights(config)
    )
    monkeypatch.setattr(options, "load", lambda asked: (own, source))
    sizes: Any = {
        "data": tmp_path / "data",
        "recipe": DrafterRecipe(tokens=100),
        "asked": Options(),
    }
    gad("gad-ctc:width=8", [file], out=out, as_json=True, **sizes)
    figures = json.loads(capsys.readouterr().out)
    assert figures["finished"] is True
    assert load_network(out).metadata["model"] == "m"
    card = json.loads(out.with_suffix(".json").read_text())
    assert card["drafter"] == "gad-ctc"
    assert card["settings"].keys() == training.USED | {"vocabulary", "coverage"}
    assert card["data"]["sources"] == ["transcripts that the target wrote of sounds"]
    with pytest.raises(InvalidOption, match="NETWORK must be gad or gad-ctc"):
        gad("medusa", **sizes)
