"""Screens fitted to a drafter's hidden states: exact at full rank, and the best of a low one."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

pytest.importorskip("torch")

import torch
from tests.helpers.tiny_model import save_directory, tiny_config

from paceline.errors import InvalidOption
from paceline.lab.training.batches import Batch, FeatureSource
from paceline.lab.training.data import Text
from paceline.lab.training.head_preview import HeadPreviewTask
from paceline.models.source import ModelSource, resolve
from paceline.networks.catalogue import build
from paceline.networks.head_preview import HeadPreview
from paceline.networks.weights import Trained
from paceline.runtimes.torch.target import TorchTarget

CONFIG = tiny_config()
IDS = np.arange(10, 300)
NETWORKS = ["hydra", "ctc", "block-parallel", "draft-lm", "chimera"]


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> ModelSource:
    return resolve(str(save_directory(tmp_path_factory.mktemp("model"), CONFIG)))


@pytest.fixture(scope="module")
def batch(source: ModelSource) -> Batch:
    target: Any = TorchTarget(CONFIG, source.weights())
    rng = np.random.default_rng(0)
    texts = [Text(i, rng.integers(320, size=30), 4 + i) for i in range(6)]
    return FeatureSource(target).batch(texts)


def previewing(name: str, source: ModelSource) -> HeadPreviewTask:
    network, rng = build(name, CONFIG, {}), np.random.default_rng(1)
    weights = {
        each: rng.normal(len(shape) == 1, 0.3, shape).astype(np.float32)
        for each, shape in network.shapes().items()
    }
    features: Any = None  # batches are added as they are
    return HeadPreviewTask(Trained(network, weights, IDS, {}), source, features, [], [], 4)


@pytest.mark.parametrize("name", NETWORKS)
def test_a_screen_of_full_rank_changes_nothing(
    name: str, source: ModelSource, batch: Batch
) -> None:
    """One of rank 1 does."""
    made = previewing(name, source)
    made.add(batch)
    judged = made.compare(batch, made.fit(CONFIG.hidden_size))
    assert judged.places > 200
    assert judged.kept == judged.places
    assert judged.without.starts == judged.previewed.starts > 0
    assert np.array_equal(judged.without.accepted, judged.previewed.accepted)
    poor = made.compare(batch, made.fit(1))
    assert poor.kept < poor.places == judged.places
    both = judged + poor
    assert (both.places, both.kept) == (2 * judged.places, judged.kept + poor.kept)


def test_no_screen_of_its_rank_foretells_logits_better(source: ModelSource, batch: Batch) -> None:
    """Of the states that were taken in: neither what is best for the head alone, nor for states."""
    made: Any = previewing("hydra", source)
    made.add(batch)
    head, moment = made._head.double(), made._moment

    def error(head_preview: HeadPreview) -> float:
        down, up = (
            torch.from_numpy(each).double() for each in (head_preview.down, head_preview.up)
        )
        missed = head - up @ down
        return float((missed @ moment @ missed.T).trace())

    for rank in (4, 8, 16):
        best = error(made.fit(rank))
        for axes in (torch.linalg.svd(head)[2][:rank], torch.linalg.eigh(moment)[1].T[-rank:]):
            other = HeadPreview(axes.float().numpy(), (head @ axes.T).float().numpy())
            assert best < 0.999 * error(other)
        assert best > error(made.fit(rank + 1))


def test_only_answers_count(source: ModelSource, batch: Batch) -> None:
    made = previewing("hydra", source)
    prompts = Batch(batch.features, batch.tokens, batch.lengths, batch.lengths)
    made.add(prompts)
    with pytest.raises(InvalidOption, match="no answers"):
        made.fit(4)


@pytest.mark.parametrize("rank", [0, 65])
def test_ranks_out_of_range_are_named(rank: int, source: ModelSource) -> None:
    with pytest.raises(InvalidOption, match="rank must be 1 to 64"):
        previewing("hydra", source).fit(rank)


def test_numbers_are_those_of_the_file(source: ModelSource, batch: Batch) -> None:
    made = previewing("hydra", source)
    made.add(batch)
    for each in made.fit(8).tensors().values():
        assert np.array_equal(each, each.astype(np.float16).astype(np.float32))
