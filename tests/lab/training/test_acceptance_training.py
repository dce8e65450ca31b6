"""The head that predicts acceptance: what it learns from, and that it is what decoding asks."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

pytest.importorskip("torch")

import torch
from tests.drafters.network.test_online import GREEDY, SAMPLED, generate
from tests.drafters.network.test_online import context as drafting
from tests.lab.training.test_trainer import CONFIG, EMBEDDING, texts, trainer
from tests.lab.training.test_trainer import target as target
from tests.networks.batch import batch_of
from tests.networks.cases import NETWORKS, module
from tests.networks.cases import texts as random_texts
from tests.networks.runners import IDS as NAMES
from tests.networks.runners import RUNTIMES, ready

from paceline.drafters.base import NoDrafter
from paceline.drafters.network.stopping_head import AcceptanceHead, save_acceptance_head
from paceline.drafters.network.weights import digest_of
from paceline.errors import InvalidOption
from paceline.lab.training.acceptance import (
    AcceptanceModule,
    AcceptanceTask,
    HeadQuality,
    drafted_states,
)
from paceline.lab.training.batches import FeatureSource
from paceline.lab.training.data import Text
from paceline.lab.training.module import restore_module
from paceline.lab.training.recipe import HeadRecipe
from paceline.lab.training.run import TrainingRun
from paceline.methods.networks.hydra import HydraDrafter
from paceline.networks.runner import ContextUpdate
from paceline.networks.weights import Trained, save_network
from paceline.runtimes.torch.target import TorchTarget

__all__ = ["target", "texts"]

STEPPING = [name for name, make in NETWORKS.items() if make().width == 1 and make().steps > 1]
RECIPE = HeadRecipe(tokens=2000, batch_tokens=200, inner=16)


@pytest.mark.parametrize("runtime", RUNTIMES)
@pytest.mark.parametrize("name", ["hydra", "eagle3", "chimera", "draft-lm"])
def test_decoding_shows_the_states_that_were_trained_on(name: str, runtime: str) -> None:
    trained, runner = ready(runtime, name)
    features, tokens = random_texts(1, 9)
    position, reads = 5, trained.network.reads_features
    drafted = [int(NAMES[3]), int(NAMES[7])]
    rows = tokens[0, 1 if reads else 0 : position + 2].tolist()
    shown = features[0, : position + 1] if reads else torch.zeros(len(rows), 0)
    cache = runner.open()
    (branch,) = runner.start([ContextUpdate(cache, shown.float().numpy(), rows)])
    found = []
    for token in drafted:
        (branch,) = runner.advance([(branch, [token])])
        found.append(runner.hidden(branch).reshape(-1))
    runner.release(cache)
    spliced = tokens.clone()
    spliced[0, position + 2 : position + 4] = torch.tensor(drafted)

    def feed(step: int) -> torch.Tensor:
        ahead = torch.zeros_like(spliced)
        ahead[:, : -1 - step] = spliced[:, 1 + step :]
        return ahead[..., None]

    steps = [state[0, position] for _, state, _ in trained.unroll(features, spliced, feed)]
    for mine, theirs in zip(found, steps[1:], strict=False):
        np.testing.assert_allclose(mine, theirs.detach().flatten().numpy(), rtol=1e-3, atol=1e-3)


@pytest.mark.parametrize("name", STEPPING)
def test_what_teaches_are_own_tokens_behind_true_ones(name: str) -> None:
    """All fed tokens its own: then counted by walking the text with its drafts."""
    trained = module(NETWORKS[name]()).float()
    features, tokens = random_texts(3, 16)
    tokens = torch.from_numpy(NAMES)[tokens % 3]
    batch = batch_of(tokens, [16, 12, 16], [2, 2, 4], features.float())
    batch = replace(batch, features=batch.features.astype(np.float32))
    rng = np.random.default_rng(0)
    drafted = drafted_states(trained, batch, NAMES, 1.0, rng)
    expected: list[float] = []
    own: list[float] = []
    distributions = trained(features.float(), tokens)
    for step in range(1, trained.network.steps):
        for row in range(3):
            for position in range(16):
                if not batch.prompt_lengths[row] <= position + 1 + step < batch.lengths[row]:
                    continue
                said = [int(NAMES[distributions[d][row, position].argmax()]) for d in range(step)]
                text = tokens[row, position + 2 : position + 2 + step].tolist()
                if said[:-1] == text[:-1]:  # so that true tokens were fed
                    expected.append(float(said[-1] == text[-1]))
                    own.append(distributions[step - 1][row, position].softmax(-1).max().item())
    assert len(drafted.states) == len(expected) > 20
    assert drafted.stood.tolist() == expected
    np.testing.assert_allclose(drafted.own, own, rtol=1e-3)


def test_both_forms_of_a_head_say_the_same() -> None:
    recipe, drawn = replace(RECIPE, blocks=2), torch.Generator().manual_seed(0)
    head = AcceptanceModule(torch.arange(1.0, 7), recipe, drawn)
    with torch.no_grad():
        for each in head.parameters():
            each += 0.3 * torch.randn(each.shape, generator=torch.Generator().manual_seed(1))
    states = np.random.default_rng(0).normal(size=(9, 6)).astype(np.float32)
    own = np.linspace(0.1, 0.9, 9)
    scores = head(torch.from_numpy(states), torch.from_numpy(np.log(own / (1 - own))))
    said = AcceptanceHead(head.named(), 1.0, {}).chances(states, own)
    np.testing.assert_allclose(said, torch.sigmoid(scores).detach().numpy(), rtol=1e-4)


@pytest.fixture(scope="module")
def hydra(target: TorchTarget, texts: list[Text]) -> Trained:
    run = trainer(target, texts, tokens=3000)
    for _ in run.run():
        pass
    ids = np.flatnonzero(run.task._places.numpy() >= 0)
    return Trained(run.task.network, run.task.parameters(), ids, {"model": "fingerprint"})


def trained_head(*parts: Any) -> tuple[AcceptanceHead, HeadQuality]:
    run = TrainingRun(AcceptanceTask(*parts))
    list(run.run())
    return run.task.result(), run.task.judge()


def test_a_head_that_is_cut_ends_like_one_that_is_not(
    target: TorchTarget, texts: list[Text], hydra: Trained, tmp_path: Path
) -> None:
    source: Any = SimpleNamespace(config=CONFIG, weights=lambda: {"embed": EMBEDDING})
    given = restore_module(hydra, source), texts[:36], texts[36:], FeatureSource(target)
    parts = *given, hydra.draft_ids, RECIPE, {"weights": "hydra"}
    whole, place = trained_head(*parts), tmp_path / "a.checkpoint"
    cut = TrainingRun(AcceptanceTask(*parts), place)
    for report in cut.run():
        if report.step == 3:
            break
    cut.save()
    resumed = TrainingRun(AcceptanceTask(*parts), place)
    assert 3 == resumed.step < resumed.steps
    list(resumed.run())
    for name, value in whole[0].parameters.items():
        assert np.array_equal(value, resumed.task.result().parameters[name]), name
    assert resumed.task.judge().auc == whole[1].auc


def test_a_head_learns_what_is_accepted_and_stops_drafts(
    target: TorchTarget,
    texts: list[Text],
    hydra: Trained,
    tmp_path: Path,
) -> None:
    source: Any = SimpleNamespace(config=CONFIG, weights=lambda: {"embed": EMBEDDING})
    path = tmp_path / "hydra.safetensors"
    save_network(path, hydra)
    given = {"weights": digest_of(path)}
    parts = restore_module(hydra, source), texts[:36], texts[36:], FeatureSource(target)
    recipe = replace(RECIPE, tokens=8000)
    head, judged = trained_head(*parts, hydra.draft_ids, recipe, given)
    assert judged.auc > 0.9
    assert judged.error < 0.9 * judged.own_error  # in order both are good here
    _, again = trained_head(*parts, hydra.draft_ids, recipe, given)
    assert again.auc == judged.auc
    save_acceptance_head(tmp_path / "head", head)
    options = {"weights": str(path), "head": str(tmp_path / "head")}
    lengths = []
    for stop in ("0", "0.4", "0.9"):
        drafter = HydraDrafter.create(drafting(target, **options, stop=stop))
        for params in (GREEDY, SAMPLED):
            plain = [each.tokens for each in generate(target, NoDrafter(), params)]
            found = generate(target, drafter, params)
            assert [each.tokens for each in found] == plain
        lengths.append(
            sum(each.stats.drafted_tokens for each in found)
            / sum(each.stats.target_forwards for each in found)
        )
    assert all(longer > shorter for longer, shorter in pairwise(lengths))
    for more, message in (
        ({"growth": "expand-rerank"}, "option head ends chains"),
        ({"online": "4"}, "option head ends chains"),
        ({"head": str(path)}, "holds no acceptance head"),
    ):
        with pytest.raises(InvalidOption, match=message):
            HydraDrafter.create(drafting(target, **{**options, **more}))
