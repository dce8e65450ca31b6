"""A network's own drafts: fed back as decoding feeds them, and judged by the target itself."""

from __future__ import annotations

from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("torch")

import torch
from tests.helpers.tiny_model import named_tensors, tiny_config
from tests.networks.cases import DRAFT_VOCABULARY, NETWORKS, module
from tests.networks.cases import texts as random_texts
from tests.runtimes import tiny_cpu

from paceline.core.target import Rows
from paceline.core.types import IntArray
from paceline.errors import InvalidOption
from paceline.lab.training.batches import FeatureSource
from paceline.lab.training.data import Text
from paceline.lab.training.drafter import DrafterTask
from paceline.lab.training.losses import find_loss
from paceline.lab.training.module import DraftModule
from paceline.lab.training.on_policy import OnPolicy, Places, check, self_drafts
from paceline.lab.training.recipe import DrafterRecipe
from paceline.lab.training.run import TrainingRun
from paceline.lab.training.vocabulary import DraftVocabulary
from paceline.networks.catalogue import build
from paceline.runtimes.torch.target import TorchTarget

DRAFTING = [name for name in NETWORKS if name != "ctc"]
CONFIG = tiny_config(vocab_size=64)
TENSORS = named_tensors(CONFIG)
EMBEDDING = torch.from_numpy(TENSORS["embed"])
IDS = np.arange(0, 64, 2)


@pytest.fixture(scope="module")
def target() -> TorchTarget:
    return TorchTarget(CONFIG, TENSORS)


@pytest.fixture(scope="module")
def texts() -> list[Text]:
    rng = np.random.default_rng(1)
    lengths = rng.integers(9, 40, 48)
    return [Text(i, rng.integers(0, 64, length), 3) for i, length in enumerate(lengths)]


@pytest.mark.parametrize("name", DRAFTING)
def test_drafts_are_what_the_same_text_would_bring(name: str) -> None:
    """Each against a pass over a text in which the network's own words stand."""
    trained = module(NETWORKS[name]())
    features, tokens = random_texts(2, 14)
    places = Places(torch.tensor([0, 1, 0]), torch.tensor([2, 4, 5]))
    ids = torch.arange(DRAFT_VOCABULARY) + 3
    own = self_drafts(trained, features, tokens, places, ids, lambda logits: logits.argmin(-1))
    depth = trained.network.depth
    assert own.picks.shape == (3, depth)
    for index, (row, position) in enumerate(zip(places.texts, places.positions, strict=True)):
        spliced = tokens[row : row + 1].clone()
        spliced[0, position + 2 : position + 2 + depth] = ids[own.picks[index]]
        whole = trained(features[row : row + 1], spliced)
        for d in range(depth):
            torch.testing.assert_close(own.logits[d][index], whole[d][0, position])
            assert own.picks[index, d] == own.logits[d][index].argmin()


def places_of(texts: list[Text], seed: int) -> tuple[IntArray, IntArray]:
    rng = np.random.default_rng(seed)
    rows = rng.integers(0, len(texts), 9)
    last = np.array([len(texts[row].tokens) - 2 for row in rows])
    return rows, rng.integers(0, last)


@pytest.mark.parametrize("runtime", ["torch", "cpu"])
def test_scores_are_those_of_the_target_behind_each_draft(
    runtime: str, target: TorchTarget, texts: list[Text]
) -> None:
    asked: Any = target
    if runtime == "cpu":
        asked = tiny_cpu.target("fp32", CONFIG)
    rows, positions = places_of(texts[:4], 0)
    drafts = np.random.default_rng(2).integers(0, 64, (9, 3))
    hidden = OnPolicy(asked, IDS).score(texts, rows, positions, drafts)
    for row, position, draft, found in zip(rows, positions, drafts, hidden, strict=True):
        tokens = [*texts[row].tokens[: position + 2].tolist(), *draft[:-1].tolist()]
        (output,) = target.forward([Rows.draft(target.open(), tokens, features=True)])
        assert output.features is not None
        expected = output.features[-3:, -CONFIG.hidden_size :]
        np.testing.assert_allclose(found, expected, atol=1e-4)


def fresh(name: str = "hydra") -> DraftModule:
    network = build(name, CONFIG, {"steps": "3"})
    generator = torch.Generator().manual_seed(0)
    out = DraftModule(network, EMBEDDING, EMBEDDING[IDS], generator)
    with torch.no_grad():
        for parameter in out.parameters():
            parameter += 0.1 * torch.randn(parameter.shape, generator=generator)
    return out


def test_the_loss_is_its_definition(target: TorchTarget, texts: list[Text]) -> None:
    """Drawn again from the same seed, row by row, and the target asked from scratch."""
    trained, few = fresh(), texts[:3]
    batch = FeatureSource(target).batch(few)
    seen: list[tuple[IntArray, IntArray, IntArray]] = []

    class Noted(OnPolicy):
        def score(self, texts, rows, positions, drafts):  # type: ignore[no-untyped-def]
            seen.append((rows, positions, drafts))
            return super().score(texts, rows, positions, drafts)

    settings = {"decay": 0.5, "half": False, "seed": (0, 7, 1)}
    own = Noted(target, IDS)
    found = own.loss(trained, few, batch, find_loss("reverse-kl"), **settings)
    ((rows, positions, drafts),) = seen
    for row, position in zip(rows, positions, strict=True):
        assert few[row].prompt_length <= position + 2 < len(few[row].tokens)
    assert len(set(zip(rows.tolist(), positions.tolist(), strict=True))) == len(rows)
    parts = np.zeros((3, len(rows)))
    reach = np.ones((3, len(rows)))
    for index, (row, position) in enumerate(zip(rows, positions, strict=True)):
        tokens = few[row].tokens.copy()
        tokens = np.concatenate([tokens[: position + 2], drafts[index]])
        (output,) = target.forward([Rows.draft(target.open(), tokens.tolist(), features=True)])
        assert output.features is not None
        distributions = trained(
            torch.from_numpy(output.features)[None], torch.from_numpy(tokens)[None]
        )
        for d in range(3):
            q = distributions[d][0, position].softmax(-1).detach().numpy()
            hidden = torch.from_numpy(output.features[position + 1 + d])
            p = trained.teacher(hidden).softmax(-1).numpy()
            parts[d, index] = (q * (np.log(q) - np.log(p))).sum()
            pick = IDS.tolist().index(drafts[index, d])
            reach[d + 1 :, index] *= min(1, p[pick] / q[pick])
    counts = reach * np.array([[1], [0.5], [0.25]])
    assert found.item() == pytest.approx((parts * counts).sum() / counts.sum(), rel=1e-3)
    again = own.loss(trained, few, batch, find_loss("reverse-kl"), **settings)
    assert again.item() == found.item()
    other = own.loss(trained, few, batch, find_loss("reverse-kl"), **{**settings, "seed": (1,)})
    assert other.item() != found.item()
    found.backward()
    assert all(each.grad is not None for each in trained.parameters())


def trainer(
    target: TorchTarget, texts: list[Text], place: Path | None = None, name: str = "hydra", **more
) -> TrainingRun:
    settings = {"tokens": 3000, "batch_tokens": 200, "training_precision": "fp32", "loss": "tvd"}
    recipe = DrafterRecipe(**{**settings, **more})
    network = build(name, CONFIG, {})
    vocabulary = DraftVocabulary(IDS, 64, 1.0)
    head = TENSORS["embed"]
    source, own = FeatureSource(target), OnPolicy(target, IDS)
    task = DrafterTask(network, vocabulary, head, head, texts, source, recipe, self_drafts=own)
    return TrainingRun(task, place)


@pytest.mark.parametrize("name", ["hydra", "block-parallel", "draft-lm"])
def test_networks_learn_from_their_own_words_alone(
    name: str, target: TorchTarget, texts: list[Text]
) -> None:
    run = trainer(target, texts, name=name, on_policy=1.0, loss="forward-kl", tokens=8000)
    batch = run.task._source.batch(texts[:12])
    judge = {"decay": 0.8, "half": False, "seed": (5,)}
    own = OnPolicy(target, IDS)
    before = own.loss(run.task.module, texts[:12], batch, run.task._loss, **judge).item()
    for _ in run.run():
        pass
    assert (
        own.loss(run.task.module, texts[:12], batch, run.task._loss, **judge).item() < 0.6 * before
    )


def test_a_mixed_run_that_is_cut_ends_like_one_that_is_not(
    target: TorchTarget, texts: list[Text], tmp_path: Path
) -> None:
    settings = {"on_policy": 0.5, "tokens": 1500}
    whole = trainer(target, texts, **settings)
    losses = [report.loss for report in whole.run()]
    place = tmp_path / "a.checkpoint"
    cut = trainer(target, texts, place, **settings)
    seen = [report.loss for report in islice(cut.run(), 4)]
    cut.save()
    resumed = trainer(target, texts, place, **settings)
    assert seen + [report.loss for report in resumed.run()] == losses
    with pytest.raises(InvalidOption, match="on_policy"):
        trainer(target, texts, place, **{**settings, "on_policy": 0.25})
    plain = trainer(target, texts, tokens=1500)
    assert [report.loss for report in plain.run()] != losses


def test_what_learns_from_labels_alone_is_refused(target: TorchTarget, texts: list[Text]) -> None:
    with pytest.raises(InvalidOption, match="loss cross-entropy learns from what the target"):
        trainer(target, texts, on_policy=0.5, loss="cross-entropy")
    with pytest.raises(InvalidOption, match="'ctc' learns by a loss of its own"):
        check(NETWORKS["ctc"](), find_loss("tvd"))
    with pytest.raises(InvalidOption, match="on_policy must be in"):
        DrafterRecipe(on_policy=1.5)
    for loss in ("forward-kl", "reverse-kl", "jsd", "tvd", "tvd++"):
        check(NETWORKS["falcon"](), find_loss(loss))
