"""Glancing: wrong slots alone are put right, as many as the share says, and training resumes."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from tests.helpers.tiny_model import named_tensors, tiny_config
from tests.networks.batch import batch_of
from tests.networks.cases import DRAFT_VOCABULARY, GEOMETRY, NETWORKS, module, texts
from torch import Tensor

from paceline.networks.base import Geometry
from paceline.networks.catalogue import build
from paceline.networks.torch_ops import TorchOps
from paceline.runtimes.torch.target import TorchTarget
from paceline.training.batches import FeatureSource
from paceline.training.data import Text, count_tokens, keep_frequent
from paceline.training.module import DraftModule
from paceline.training.trainer import Recipe, Trainer
from paceline.zoo.networks.falcon import Falcon
from paceline.zoo.networks.glancing import Glance, some

TIME, WIDTH = 12, GEOMETRY.width
LENGTHS, PROMPTS = [12, 9], [3, 1]
PLACES = torch.arange(GEOMETRY.vocab_size).clamp_max(DRAFT_VOCABULARY - 1)


def draw(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


@pytest.mark.parametrize("share", [0.0, 0.1, 0.45, 1.0])
def test_so_many_of_the_wrong_ones_are_chosen(share: float) -> None:
    wrong = torch.rand(5, 40, 2, generator=draw(1)) < torch.linspace(0, 1, 5)[:, None, None]
    chosen = some(wrong, share, draw(2))
    assert not (chosen & ~wrong).any()
    for text, counted in zip(chosen, wrong, strict=True):
        assert int(text.sum()) == round(share * int(counted.sum()))
    again, other = some(wrong, share, draw(2)), some(wrong, share, draw(3))
    assert torch.equal(chosen, again)
    assert torch.equal(chosen, other) == (share in (0, 1))


def revealed(network: Falcon, share: float) -> tuple[DraftModule, list[Tensor], list[Tensor]]:
    """States of all steps but the last, as foretold and as put right."""
    features, tokens = texts(2, TIME)
    batch = batch_of(tokens, LENGTHS, PROMPTS, features)
    trained = module(network)
    given = Glance(network, batch, PLACES, share, draw())
    before: list[Tensor] = []
    after: list[Tensor] = []

    def watched(ops: TorchOps, state: Tensor, step: int) -> Tensor:
        before.append(state)
        after.append(given(ops, state, step))
        return after[-1]

    with torch.no_grad():
        trained.draft(features, tokens, watched)
    return trained, before, after


@pytest.mark.parametrize("name", ["falcon", "falcon-of-three"])
def test_wrong_slots_get_their_true_hidden_states_and_no_others(name: str) -> None:
    features, tokens = texts(2, TIME)
    network = NETWORKS[name]()
    assert isinstance(network, Falcon)
    trained, before, after = revealed(network, 1.0)
    head = trained.get_buffer("head")
    kept = changed = 0
    assert len(before) == network.steps - 1
    for step, (own, found) in enumerate(zip(before, after, strict=True)):
        for text, at, slot in np.ndindex(2, TIME, network.width):
            place = at + 1 + step * network.width + slot  # of the hidden state that is foretold
            wrong = place + 1 < LENGTHS[text] and bool(
                (head @ own[text, at, slot]).argmax() != PLACES[tokens[text, place + 1]]
            )
            true = features[text, place, -WIDTH:].float() if wrong else own[text, at, slot]
            torch.testing.assert_close(found[text, at, slot], true.to(own.dtype), atol=1e-6, rtol=0)
            kept, changed = kept + (not wrong), changed + wrong
    assert kept > 20
    assert changed > 20


def test_deeper_drafts_alone_change_and_the_loss_meets_what_was_foretold() -> None:
    features, tokens = texts(2, TIME)
    network = NETWORKS["falcon"]()
    trained, batch = module(network), batch_of(tokens, LENGTHS, PROMPTS, features)
    with torch.no_grad():
        plainly = trained.draft(features, tokens)
        glanced = trained.draft(features, tokens, Glance(network, batch, PLACES, 0.5, draw()))
        nothing = trained.draft(features, tokens, Glance(network, batch, PLACES, 0.0, draw()))
    for depth, (a, b, c) in enumerate(
        zip(plainly.logits, glanced.logits, nothing.logits, strict=True)
    ):
        assert torch.equal(a, b) == (depth < network.width)
        assert torch.equal(a, c)
    for a, b in zip(plainly.features[:2], glanced.features[:2], strict=True):
        assert torch.equal(a, b)


def test_less_is_shown_as_training_goes_on_and_to_falcon_alone() -> None:
    batch = batch_of(texts(2, TIME)[1], LENGTHS, PROMPTS)
    falcon, plain = Falcon(GEOMETRY), Falcon(GEOMETRY, glancing=False)
    found = [falcon.reveal(batch, PLACES, progress, (0, 1)) for progress in (0, 0.5, 1)]
    assert [each.share for each in found] == pytest.approx([0.45, 0.275, 0.1])
    assert plain.reveal(batch, PLACES, 0, (0, 1)) is None
    glancing = {name for name in NETWORKS if NETWORKS[name]().reveal(batch, PLACES, 0, (0, 1))}
    assert glancing == {"falcon", "falcon-of-three"}


CONFIG = tiny_config(vocab_size=64)
TENSORS = named_tensors(CONFIG)


def trainer(place: Path | None = None, **settings: bool) -> Trainer:
    rng = np.random.default_rng(0)
    written = [Text(i, np.tile(rng.integers(64, size=4), 5), 2) for i in range(48)]
    vocabulary = keep_frequent(count_tokens((t.tokens for t in written), 64), 48, (2,))
    network = build("falcon", Geometry.of(CONFIG), settings)
    source = FeatureSource(TorchTarget(CONFIG, TENSORS))
    table = TENSORS["embed"]
    recipe = Recipe(1600, batch_tokens=200, precision="fp32")
    return Trainer(network, vocabulary, table, table, written, source, recipe, checkpoint_at=place)


def test_a_glancing_run_learns_and_resumes_exactly(tmp_path: Path) -> None:
    whole = trainer()
    before, _ = whole.judge()
    losses = [report.loss for report in whole.run()]
    assert whole.judge()[0] < before
    place = tmp_path / "a.checkpoint"
    cut = trainer(place)
    seen = []
    for report in cut.run():
        seen.append(report.loss)
        if report.step == 3:
            break
    cut.save()
    seen += [report.loss for report in trainer(place).run()]
    assert seen == losses
    without = trainer(glancing=False)
    assert [report.loss for report in without.run()] != losses
    assert without.judge() != whole.judge()
