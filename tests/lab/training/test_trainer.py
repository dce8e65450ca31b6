"""Training on a tiny model: it learns, resumes exactly, and stops at what would spoil it."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("torch")

import torch
from tests.helpers.tiny_model import named_tensors, tiny_config

from paceline.core.target import Rows
from paceline.errors import InvalidOption, ModelError
from paceline.lab.training.batches import FeatureSource, order
from paceline.lab.training.data import Text
from paceline.lab.training.drafter import DrafterTask
from paceline.lab.training.recipe import DrafterRecipe
from paceline.lab.training.run import TrainingRun
from paceline.lab.training.vocabulary import count_tokens, keep_frequent
from paceline.networks.catalogue import build
from paceline.runtimes.torch.target import TorchTarget

CONFIG = tiny_config(vocab_size=64)
TENSORS = named_tensors(CONFIG)
EMBEDDING = TENSORS["embed"]


@pytest.fixture(scope="module")
def target() -> TorchTarget:
    return TorchTarget(CONFIG, TENSORS)


@pytest.fixture(scope="module")
def texts(target: TorchTarget) -> list[Text]:
    """What the target writes greedily after single tokens."""
    out = []
    for index in range(48):
        tokens = [index % 64, 3]
        cache = target.open()
        target.prefill(cache, tokens[:-1])
        for _ in range(22):
            logits = target.forward([Rows.draft(cache, tokens[-1:])])[0].logits[0]
            target.keep(cache, 1, ())
            tokens.append(int(logits.argmax()))
        out.append(Text(index, np.array(tokens), 2))
    return out


def trainer(
    target: TorchTarget, texts: list[Text], place: Path | None = None, name: str = "hydra", **more
) -> TrainingRun:
    settings = {"tokens": 6000, "batch_tokens": 200, "training_precision": "fp32", **more}
    recipe = DrafterRecipe(**settings)
    counts = count_tokens((text.tokens[2:] for text in texts), 64)
    vocabulary = keep_frequent(counts, 48, (2,))
    network = build(name, CONFIG, {})
    source = FeatureSource(target)
    task = DrafterTask(network, vocabulary, EMBEDDING, EMBEDDING, texts, source, recipe)
    return TrainingRun(task, place)


def test_a_drafter_learns_to_draft(target: TorchTarget, texts: list[Text]) -> None:
    run = trainer(target, texts)
    before_loss, before = run.task.judge()
    reports = list(run.run())
    after_loss, after = run.task.judge()
    assert [report.step for report in reports] == list(range(1, run.steps + 1))
    assert abs(reports[-1].tokens - 6000) < 400
    assert after_loss < 0.7 * before_loss
    assert after.block_efficiency > before.block_efficiency + 0.3
    held = {text.index for text in run.task.held_out}
    assert held
    assert not held & {text.index for text in run.task.texts}


def test_a_run_that_is_cut_ends_like_one_that_is_not(
    target: TorchTarget, texts: list[Text], tmp_path: Path
) -> None:
    whole = trainer(target, texts, tokens=3000)
    losses = [report.loss for report in whole.run()]
    place = tmp_path / "a.checkpoint"
    cut, seen = trainer(target, texts, place, tokens=3000), []
    for report in cut.run():
        seen.append(report.loss)
        if report.step == 7:
            break
    cut.save()
    resumed = trainer(target, texts, place, tokens=3000)
    assert (resumed.step, resumed.tokens) == (7, cut.tokens)
    assert resumed.course.as_dict() == cut.course.as_dict()
    seen += [report.loss for report in resumed.run()]
    assert seen == losses
    for name, value in whole.task.parameters().items():
        assert np.array_equal(value, resumed.task.parameters()[name]), name


def test_a_checkpoint_of_another_recipe_or_a_damaged_one_is_refused(
    target: TorchTarget, texts: list[Text], tmp_path: Path
) -> None:
    place = tmp_path / "a.checkpoint"
    run = trainer(target, texts, place)
    next(run.run())
    run.save()
    with pytest.raises(InvalidOption, match="seed"):
        trainer(target, texts, place, seed=1)
    place.write_bytes(place.read_bytes()[:-5])
    with pytest.raises(ModelError, match="cannot resume"):
        trainer(target, texts, place)


def test_a_loss_that_is_no_number_stops_the_run(target: TorchTarget, texts: list[Text]) -> None:
    run = trainer(target, texts)
    with torch.no_grad():
        run.task.module.named()["fuse"].fill_(math.nan)
    with pytest.raises(InvalidOption, match="the loss is nan at step 0"):
        next(run.run())


def test_a_target_that_is_damaged_stops_the_run(
    target: TorchTarget, texts: list[Text], monkeypatch: pytest.MonkeyPatch
) -> None:
    run = trainer(target, texts)
    batch = run.task._source.batch(texts[:2])
    batch.features[0, 3] = np.nan
    monkeypatch.setattr(run.task._source, "batch", lambda _: batch)
    with pytest.raises(InvalidOption, match="hidden states that are no numbers"):
        next(run.run())


@pytest.mark.parametrize(
    "wrong", [{"tokens": 0}, {"loss": "none"}, {"training_precision": "fp8"}, {"rate": 0.0}]
)
def test_wrong_recipes_are_refused(wrong: dict) -> None:
    with pytest.raises(InvalidOption):
        DrafterRecipe(**{"tokens": 10, **wrong})


def test_too_few_texts_are_refused(target: TorchTarget, texts: list[Text]) -> None:
    with pytest.raises(InvalidOption, match="too few"):
        trainer(target, texts[:8])


def test_features_are_the_targets_own_and_are_kept_if_asked(
    target: TorchTarget, texts: list[Text], tmp_path: Path
) -> None:
    source = FeatureSource(target, tmp_path / "kept")
    batch = source.batch(texts[:3])
    assert batch.size == sum(len(text.tokens) for text in texts[:3])
    for row, text in enumerate(texts[:3]):
        (output,) = target.forward([Rows.draft(target.open(), text.tokens.tolist(), features=True)])
        np.testing.assert_allclose(
            batch.features[row, : len(text.tokens)], output.features, atol=1e-5
        )
    again = FeatureSource(None, tmp_path / "kept")  # no target is needed a second time
    np.testing.assert_allclose(
        again.batch(texts[:3]).features, batch.features, rtol=1e-3, atol=1e-2
    )


def test_batches_hold_every_text_once_and_no_more_tokens_than_wanted(texts: list[Text]) -> None:
    groups = order(texts, 100, 3)
    assert sorted(text.index for group in groups for text in group) == list(range(48))
    for group in groups:
        assert len(group) * max(len(text.tokens) for text in group) <= 100
    assert [t.index for g in order(texts, 100, 4) for t in g] != [
        t.index for g in groups for t in g
    ]
