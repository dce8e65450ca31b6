"""Runs that start from weights, and networks that read tokens alone or run the target's layers."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("torch")

import torch
from tests.helpers.tiny_model import named_tensors, tiny_config

from paceline.errors import InvalidOption
from paceline.lab.training.batches import FeatureSource, TokenSource
from paceline.lab.training.data import Text
from paceline.lab.training.drafter import DrafterTask
from paceline.lab.training.module import share_target_weights
from paceline.lab.training.recipe import DrafterRecipe
from paceline.lab.training.run import TrainingRun
from paceline.lab.training.vocabulary import keep_frequent
from paceline.models.config import feature_layers
from paceline.models.families.base import LayerNames
from paceline.networks.base import drafter_config
from paceline.networks.blocks import stack
from paceline.networks.catalogue import build
from paceline.networks.torch_ops import NetworkTensors, TextAttention, TorchOps
from paceline.runtimes.torch.target import TorchTarget

CONFIG = tiny_config(vocab_size=64, layers=3)
TENSORS = named_tensors(CONFIG)
EMBEDDING = TENSORS["embed"]
SHAPE = drafter_config(CONFIG)
EVERY = keep_frequent(np.ones(64, dtype=np.int64), 64, ())


@pytest.fixture(scope="module")
def target() -> TorchTarget:
    return TorchTarget(CONFIG, TENSORS)


def cycles(count: int = 48, length: int = 20) -> list[Text]:
    """Texts that count up: the next token is easy to tell."""
    rows = [(np.arange(length) + 7 * index) % 64 for index in range(count)]
    return [Text(index, row.astype(np.int64), 2) for index, row in enumerate(rows)]


def trainer(target: TorchTarget, name: str = "draft-lm", **given: Any) -> TrainingRun:
    recipe = {
        "tokens": 5000,
        "batch_tokens": 100,
        "training_precision": "fp32",
        "loss": "cross-entropy",
    }
    mine = {key: given.pop(key) for key in (*recipe, "prompt_weight") if key in given}
    network = build(name, SHAPE, {"layers": 1, "steps": 3} if name == "draft-lm" else {})
    source, place = given.pop("source", FeatureSource(target)), given.pop("checkpoint_at", None)
    lent = share_target_weights(network, CONFIG, TENSORS)  # type: ignore[arg-type]  # a dict has what it needs
    task = DrafterTask(
        network,
        EVERY,
        EMBEDDING,
        EMBEDDING,
        cycles(),
        source,
        DrafterRecipe(**{**recipe, **mine}),
        target_weights=lent,
        **given,
    )
    return TrainingRun(task, place)


def test_a_run_goes_on_from_the_weights_of_another(target: TorchTarget, tmp_path: Path) -> None:
    """FastDraft: a language model first, then the target's law."""
    first = trainer(target, source=TokenSource(CONFIG.hidden_size), prompt_weight=1.0)
    untrained = first.task.judge()[1].block_efficiency
    list(first.run())
    loss, found = first.task.judge()
    assert found.block_efficiency > untrained + 1
    place = tmp_path / "second.checkpoint"
    second = trainer(target, start=first.task.parameters(), checkpoint_at=place, tokens=400)
    again_loss, again = second.task.judge()
    assert again.block_efficiency == found.block_efficiency
    assert again_loss == pytest.approx(loss, rel=1e-5)
    align = trainer(target, start=first.task.parameters(), loss="forward-kl", tokens=1500)
    before = align.task.judge()[0]
    list(align.run())
    assert align.task.judge()[0] < 0.9 * before
    next(second.run())
    second.save()
    resumed = trainer(target, start=first.task.parameters(), checkpoint_at=place, tokens=400)
    assert resumed.step == 1
    for start in ({}, align.task.parameters()):
        with pytest.raises(InvalidOption, match=r"other settings \(start\)"):
            trainer(target, start=start, checkpoint_at=place, tokens=400)


def test_what_a_start_does_not_hold_is_drawn(target: TorchTarget) -> None:
    """As it would be without a start."""
    other, drawn = trainer(target, "hydra", loss="forward-kl"), trainer(target, "block-parallel")
    other.task.module.load({name: each + 1 for name, each in other.task.module.named().items()})
    mine = drawn.task.parameters()
    shared = {
        n: v for n, v in other.task.parameters().items() if n in mine and v.shape == mine[n].shape
    }
    assert "fuse" in shared
    assert len(shared) < len(mine)
    begun = trainer(target, "block-parallel", start=shared).task.parameters()
    for name, value in begun.items():
        np.testing.assert_array_equal(value, shared.get(name, mine[name]))


def test_cross_entropy_needs_no_features(target: TorchTarget) -> None:
    with_target = trainer(target, tokens=800)
    without = trainer(target, tokens=800, source=TokenSource(CONFIG.hidden_size))
    assert [r.loss for r in with_target.run()] == [r.loss for r in without.run()]


def test_borrowed_layers_stay_as_they_are(target: TorchTarget) -> None:
    run = trainer(target, "kangaroo", loss="forward-kl", tokens=4000)
    before = {name: each.clone() for name, each in run.task.module.target_weights().items()}
    first = run.task.judge()[0]
    list(run.run())
    assert run.task.judge()[0] < first
    assert len(before) == 18
    for name, each in run.task.module.target_weights().items():
        assert torch.equal(each, before[name])
    assert not run.task.parameters().keys() & before.keys()


@pytest.mark.parametrize("wrong", [False, True])
def test_shallow_layers_compute_the_targets_own_hidden_states(
    target: TorchTarget, wrong: bool
) -> None:
    """What leaves them is what enters the layer behind them; the control swaps two layers."""
    exit = feature_layers(CONFIG.layers)[0]
    network = build("kangaroo", SHAPE, {"exit": exit})
    lent = share_target_weights(network, CONFIG, TENSORS)  # type: ignore[arg-type]
    if wrong:
        other = {key.replace("layers.0", "layers.x"): each for key, each in lent.items()}
        other = {key.replace("layers.1", "layers.0"): each for key, each in other.items()}
        lent = {key.replace("layers.x", "layers.1"): each for key, each in other.items()}
    tokens = [5, 9, 60, 9, 3, 22]
    features = target.prefill(target.open(), tokens, True)
    assert features is not None
    weights = {name: torch.from_numpy(each) for name, each in lent.items()}
    embedding = torch.from_numpy(EMBEDDING)
    tensors = NetworkTensors(weights, embedding, embedding)
    ops = TorchOps(tensors, SHAPE.norm_eps, TextAttention())
    x = ops.embed(torch.tensor([tokens]))
    found = stack(ops, network.config, list(map(LayerNames.of, range(exit))), x, "context")
    same = np.allclose(found[0], features[:, : CONFIG.hidden_size], atol=1e-4)
    assert same != wrong


@pytest.mark.parametrize(
    ("change", "exit", "message"),
    [
        ({}, 3, "exit of network 'kangaroo' must be 1 to 2, not 3"),
        ({"qkv_bias": True}, 1, "not those of this llama model"),
        ({"qk_norm": True}, 1, "not those of this llama model"),
        ({"rope_divisors": (1.0,) * 4}, 1, "not those of this llama model"),
    ],
)
def test_layers_that_cannot_be_borrowed_are_refused(
    change: dict[str, Any], exit: int, message: str
) -> None:
    network = build("kangaroo", SHAPE, {"exit": exit})
    with pytest.raises(InvalidOption, match=message):
        share_target_weights(network, replace(CONFIG, **change), TENSORS)  # type: ignore[arg-type]
    own = build("draft-lm", SHAPE, {})
    assert share_target_weights(own, replace(CONFIG, **change), TENSORS) == {}  # type: ignore[arg-type]
