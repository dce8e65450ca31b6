"""Glancing: so many rows read what they are to predict, and training resumes."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from tests.helpers.tiny_model import named_tensors, tiny_config
from tests.networks.batch import batch_of
from tests.networks.cases import DRAFT_VOCABULARY, NETWORKS, TINY, module, texts
from torch import Tensor

from paceline.lab.training.batches import FeatureSource
from paceline.lab.training.data import Text
from paceline.lab.training.drafter import DrafterTask
from paceline.lab.training.module import DraftModule
from paceline.lab.training.recipe import DrafterRecipe
from paceline.lab.training.run import TrainingRun
from paceline.lab.training.vocabulary import count_tokens, keep_frequent
from paceline.methods.networks.falcon import Falcon
from paceline.methods.networks.glancing import Glance, some
from paceline.networks.catalogue import build
from paceline.runtimes.torch.target import TorchTarget

TIME, WIDTH = 12, TINY.hidden_size
LENGTHS, PROMPTS = [12, 9], [3, 1]
PLACES = torch.arange(TINY.vocab_size).clamp_max(DRAFT_VOCABULARY - 1)


def draw(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


@pytest.mark.parametrize("count", [0, 3, 8, 99])
def test_so_many_known_ones_are_chosen(count: int) -> None:
    known = torch.rand(5, 40, generator=draw(1)) < torch.linspace(0, 1, 5)[:, None]
    counts = torch.full((5,), count)
    chosen = some(known, counts, draw(2))
    assert not (chosen & ~known).any()
    assert chosen.sum(1).tolist() == [min(count, int(each.sum())) for each in known]
    assert torch.equal(chosen, some(known, counts, draw(2)))
    assert torch.equal(chosen, some(known, counts, draw(3))) == (count in (0, 99))


def seen(name: str, share: float) -> tuple[DraftModule, Tensor, Tensor, Tensor, Tensor]:
    """A module, a batch, and what rows of the second pass read: features and next tokens."""
    features, tokens = texts(2, TIME)
    network = NETWORKS[name]()
    trained = module(network)
    batch = batch_of(tokens, LENGTHS, PROMPTS, features)
    read = Glance(network.width, batch, PLACES, share, draw())(trained, features, tokens)
    return trained, features, tokens, *read


def distances(trained: DraftModule, features: Tensor, tokens: Tensor) -> list[int]:
    """Reference: wrong tokens of blocks that lie side by side, of each text."""
    width, out = trained.network.width, [0, 0]
    with torch.no_grad():
        says = [logits.argmax(-1) for logits in trained(features, tokens)]
    for text, end, slot in np.ndindex(2, TIME, width):
        place = end + 2 + slot
        if end % width == width - 1 and place < LENGTHS[text]:
            out[text] += int(says[slot][text, end] != PLACES[tokens[text, place]])
    return out


@pytest.mark.parametrize("share", [0.0, 0.45, 1.0])
@pytest.mark.parametrize("name", ["falcon", "falcon-of-three"])
def test_the_first_pass_decides_how_many_rows_glance_at_token_and_state(
    name: str, share: float
) -> None:
    trained, features, tokens, read, following = seen(name, share)
    width = trained.network.width
    wrong = distances(trained, features, tokens)
    assert min(wrong) > 1
    assert torch.equal(read[..., :-WIDTH], features[..., :-WIDTH])
    for text in range(2):
        shown = []
        for at in range(TIME - 1):
            here = features[text, at, -WIDTH:], tokens[text, at + 1]
            found = read[text, at, -WIDTH:], following[text, at]
            if not torch.equal(found[0], here[0]):
                answer = features[text, at + width, -WIDTH:], tokens[text, at + width + 1]
                assert all(map(torch.equal, found, answer))  # both, coupled
                shown.append(at)
            else:
                assert torch.equal(found[1], here[1])
        assert all(at % width == 0 for at in shown)  # neighbours in a block see them
        most = sum(end + 1 + width < LENGTHS[text] for end in range(width - 1, TIME, width))
        assert len(shown) == min(most, round(share * wrong[text]))


def test_what_is_shown_is_seen_behind_it_and_only_while_training() -> None:
    trained, features, tokens, read, _ = seen("falcon", 0.3)
    batch = batch_of(tokens, LENGTHS, PROMPTS, features)
    given = Glance(2, batch, PLACES, 0.3, draw())
    behind = (read != features).any(-1).cummax(1).values
    assert 0 < int(behind.sum()) < behind.numel()
    with torch.no_grad():
        plainly, glanced = trained(features, tokens), trained.draft(features, tokens, given).logits
    for a, b in zip(plainly, glanced, strict=True):
        assert torch.equal((a != b).any(-1), behind)


def test_less_is_shown_as_training_goes_on_and_to_falcon_alone() -> None:
    batch = batch_of(texts(2, TIME)[1], LENGTHS, PROMPTS)
    falcon, plain = Falcon(TINY), Falcon(TINY, glancing=False)
    found = [falcon.reveal(batch, PLACES, progress, (0, 1)) for progress in (0, 0.5, 1)]
    assert [each.share for each in found] == pytest.approx([0.45, 0.275, 0.1])
    assert plain.reveal(batch, PLACES, 0, (0, 1)) is None
    glancing = {name for name in NETWORKS if NETWORKS[name]().reveal(batch, PLACES, 0, (0, 1))}
    assert glancing == {"falcon", "falcon-of-three"}


CONFIG = tiny_config(vocab_size=64)
TENSORS = named_tensors(CONFIG)


def trainer(place: Path | None = None, **settings: bool) -> TrainingRun:
    rng = np.random.default_rng(0)
    written = [Text(i, np.tile(rng.integers(64, size=4), 5), 2) for i in range(48)]
    vocabulary = keep_frequent(count_tokens((t.tokens for t in written), 64), 48, (2,))
    network = build("falcon", CONFIG, settings)
    source = FeatureSource(TorchTarget(CONFIG, TENSORS))
    table = TENSORS["embed"]
    recipe = DrafterRecipe(tokens=1600, batch_tokens=200, training_precision="fp32")
    task = DrafterTask(network, vocabulary, table, table, written, source, recipe)
    return TrainingRun(task, place)


def test_a_glancing_run_learns_and_resumes_exactly(tmp_path: Path) -> None:
    whole = trainer()
    before, _ = whole.task.judge()
    losses = [report.loss for report in whole.run()]
    assert whole.task.judge()[0] < before
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
    assert without.task.judge() != whole.task.judge()
