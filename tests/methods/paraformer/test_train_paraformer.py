"""Training of Paraformer: two passes, glancing, segments, and what is trained drafts."""

from __future__ import annotations

import json
import math
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from tests.helpers.tiny_whisper import WhisperWeights
from tests.listening.test_windows import engine
from tests.methods.gad.heard import CONFIG, IDS, cpu, network, opened
from tests.methods.gad.test_train_gad import LENGTH, kept, written

from paceline.cli import options
from paceline.lab.training.data import Text
from paceline.lab.training.recipe import DrafterRecipe
from paceline.lab.training.run import TrainingRun
from paceline.lab.training.vocabulary import DraftVocabulary
from paceline.listening import windows as listening
from paceline.methods.gad.windows import KeptWindows
from paceline.methods.paraformer import training
from paceline.methods.paraformer.command import paraformer
from paceline.methods.paraformer.drafter import fired
from paceline.methods.paraformer.training import ParaformerTask, segments
from paceline.networks.runner import ContextUpdate
from paceline.networks.weights import load_network
from paceline.registry.options import Options

__all__ = ["kept"]  # a fixture


def task(windows: KeptWindows, times: int = 1000, **recipe: Any) -> ParaformerTask:
    embedding = cpu().matrices._weights["embed"]
    vocabulary = DraftVocabulary(IDS[times > IDS], CONFIG.vocab_size, 1.0)
    chosen = DrafterRecipe(**{"tokens": 1000, "batch_tokens": 2 * LENGTH, **recipe})
    made = network("paraformer")
    begins = ParaformerTask.begins(made, CONFIG, WhisperWeights(CONFIG))
    found = ParaformerTask(
        made,
        windows,
        vocabulary,
        embedding,
        embedding,
        chosen,
        begins,
        times,  # type: ignore[arg-type]
    )
    found.begin()
    return found


def drawn(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def test_it_begins_as_the_last_layers_and_fires_as_often_as_there_are_words(
    kept: KeptWindows,
) -> None:
    made, whisper = task(kept), WhisperWeights(CONFIG)
    parameters = made.parameters()
    for layer in (0, 1):
        for part in ("q", "look_q.bias", "up", "ffn_norm.bias"):
            own = parameters[f"layers.{layer}.{part}"]
            assert np.array_equal(own, whisper[f"layers.{CONFIG.layers - 2 + layer}.{part}"])
    text = kept.texts()[0]
    odds = 1 / (1 + np.exp(-parameters["fire.bias"][0]))
    assert odds * len(kept.read(text, "rows")) == pytest.approx(len(made._words(text)), rel=0.1)


def test_it_begins_as_a_regression_of_hidden_states(kept: KeptWindows) -> None:
    made = task(kept)
    named, size = made.parameters(), CONFIG.hidden_size
    fires, states = [], []
    for text in made.texts:
        at = [n for n in range(2, len(text.tokens)) if text.tokens[n] in IDS]
        rows = kept.read(text, "rows") * named["scale"]
        # Equal weights: each word has an equal part of the rows, the first and last in shares.
        total = np.concatenate([0 * rows[:1], rows.cumsum(0, dtype=np.float64)])
        ends = np.linspace(0, len(rows), len(at) + 1)
        inside = [np.interp(ends, np.arange(len(rows) + 1), each) for each in total.T]
        fires.append(np.diff(inside).T * len(at) / len(rows))
        last = kept.read(text, "features")[np.array(at) - 1, -size:]
        states.append((last - named["norm.bias"]) / named["norm"])
    x, y = np.concatenate(fires), np.concatenate(states)
    mean = (x**2).sum() / x.shape[1] + len(x) / x.shape[1]
    ridge = np.sqrt(training.RIDGE * mean) * np.eye(x.shape[1], x.shape[1] + 1)
    x = np.pad(x, ((0, 0), (0, 1)), constant_values=1.0)
    padded = np.concatenate([y, np.zeros((len(ridge), size))])
    found = np.linalg.lstsq(np.concatenate([x, ridge]), padded, rcond=None)[0]
    said = torch.nn.functional.layer_norm(torch.from_numpy(x @ found), (size,), eps=1e-5).numpy()
    head = cpu().matrices._weights["embed"][made.vocabulary.ids]  # type: ignore[attr-defined]
    expected = (said * named["norm"] + named["norm.bias"]) @ head.T
    with torch.no_grad():
        logits = torch.cat([made.passes(text).logits for text in made.texts]).numpy()
    assert np.allclose(logits, expected, atol=1e-2)
    assert (x @ found - y).var() < 0.9 * y.var()
    shuffled = (expected[::-1] - logits).std()
    assert shuffled > 20 * (expected - logits).std()


def test_of_ratio_zero_nothing_is_shown(kept: KeptWindows, monkeypatch: pytest.MonkeyPatch) -> None:
    made, text = task(kept), kept.texts()[0]
    once = made.passes(text)
    assert not once.shown.any()
    ids = made.vocabulary.ids[once.right]
    assert ids.tolist() == [each for each in text.tokens[2:].tolist() if each in IDS]
    passes, decoded = [], made._decoded
    monkeypatch.setattr(made, "_decoded", lambda *each: passes.append(each) or decoded(*each))
    wrong = (once.logits.argmax(-1) != once.right).sum()
    assert wrong > 4
    for ratio in (0.0, 0.5, 1.0):
        monkeypatch.setattr(training, "RATIO", ratio)
        found = made.passes(text, drawn())
        assert int(found.shown.sum()) == math.floor(ratio * wrong)
        assert torch.equal(found.logits, once.logits) == (ratio == 0)
        assert len(passes) == 2
        passes.clear()
    # What is shown has no say in the loss.
    hidden = found._replace(logits=found.logits + 9 * found.shown[:, None] * torch.rand(len(IDS)))
    assert torch.equal(made._nats(hidden), made._nats(found))


def test_what_is_trained_is_what_drafts(kept: KeptWindows, tmp_path: Path) -> None:
    made, text = task(kept), kept.texts()[0]
    rows = kept.read(text, "rows")
    emitted = fired(made.parameters(), rows)
    assert len(emitted) > made.network.width
    logits = made._decoded(text, torch.from_numpy(emitted)).detach().numpy()
    runner = cpu().run_network(load_network(made.save(tmp_path / "w", {"model": "tiny"})))
    cache = opened(cpu(), 0)
    update = ContextUpdate(runner.open(), emitted, [0] * len(emitted), cache)
    behind = 0
    for part in update.parts(made.network.width):
        [root] = runner.start([ContextUpdate(runner.open(), part.features, part.tokens, cache)])
        count = len(part.tokens)
        found = logits[behind : behind + count]
        assert np.allclose(root.logits[-count:], found, atol=0.05)
        behind += count
    assert behind == len(emitted)
    assert not np.allclose(root.logits[-1], logits[0], atol=0.05)
    cpu().release(cache)


def test_words_fire_between_the_times_of_their_segment(kept: KeptWindows) -> None:
    tokens = [1, 2, 50, 5, 6, 54, 58, 7, 62, 3]
    found = [(a, b, t.tolist()) for a, b, t in segments(Text(0, np.array(tokens), 2), 50)]
    ends = [(a, b) for a, b, _ in found]
    assert ends == [(0, 0), (0, 1), (1, 2), (2, 3), (3, 1 << 32)]
    assert [t for _, _, t in found] == [[], [5, 6], [], [7], [3]]
    made = task(kept, times=50)
    text = Text(0, np.array([41, 42, 50, 4, 6, 54, 58, 8, 62, 2]), 2)
    whole = made.passes(text)
    assert made.vocabulary.ids[whole.right].tolist() == [4, 6, 8, 2]
    assert whole.logits.shape == (4, 25)
    silent = made.passes(Text(0, np.array([41, 42, 50, 58]), 2))
    assert silent.logits.shape == (0, 25)
    assert made._nats(silent).item() == silent.off.item() > 0


def test_it_learns_two_transcripts(kept: KeptWindows, tmp_path: Path) -> None:
    made = task(kept, tokens=80 * 2 * LENGTH, rate=0.12)
    run = TrainingRun(made, tmp_path / "checkpoint")
    before = made.judge()
    losses = [step.loss for step in run.run()]
    assert np.mean(losses[-5:]) < 0.7 * np.mean(losses[:5])
    judged = made.judge()
    assert judged.hits.starts > 0
    assert judged.loss < before.loss
    run.close()


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
    recipe, data = DrafterRecipe(tokens=100), tmp_path / "data"
    paraformer([file], data=data, width=8, out=out, recipe=recipe, asked=Options(), as_json=True)
    assert json.loads(capsys.readouterr().out)["finished"] is True
    trained = load_network(out)
    rules = listening.Listener(own).rules
    assert trained.draft_ids.max() < rules.end  # words alone
    assert len(trained.draft_ids) == rules.end
    card = json.loads(out.with_suffix(".json").read_text())
    assert card["command"].startswith("paceline train paraformer --width 8 --data DATA")
