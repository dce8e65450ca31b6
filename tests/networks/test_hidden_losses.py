"""Losses beside that on tokens: hidden states at the right places, and all exits."""

from __future__ import annotations

import pytest
import torch
from tests.networks.batch import batch_of
from tests.networks.cases import DRAFT_VOCABULARY, NETWORKS, TINY, module, texts
from torch import Tensor
from torch.nn.functional import smooth_l1_loss

from paceline.lab.training.losses import find_loss
from paceline.lab.training.module import Drafts
from paceline.lab.training.objective import feature_loss, network_loss, total_loss
from paceline.networks.base import Network

TIME, DEPTH, WIDTH = 7, 3, TINY.hidden_size
LENGTHS, PROMPTS = [7, 5], [3, 1]


def features_and_ahead() -> tuple[Tensor, list[Tensor]]:
    """Features, and for every depth the hidden states so many positions on."""
    features, _ = texts(2, TIME)
    features[..., -WIDTH:] *= torch.logspace(-2, 2, WIDTH)  # axes differ as real ones do
    hidden = features[..., -WIDTH:]
    return features, [hidden.roll(-depth, dims=1) for depth in range(1, DEPTH + 1)]


def test_true_hidden_states_cost_nothing_and_others_do() -> None:
    features, ahead = features_and_ahead()
    batch = batch_of(texts(2, TIME)[1], LENGTHS, PROMPTS, features)
    assert feature_loss(ahead, features, batch, 0.1).item() < 1e-12
    shifted = [ahead[1], ahead[0], ahead[2]]
    assert feature_loss(shifted, features, batch, 0.1).item() > 0.1


def test_the_loss_on_hidden_states_is_a_plain_weighted_mean() -> None:
    features, _ = features_and_ahead()
    batch = batch_of(texts(2, TIME)[1], LENGTHS, PROMPTS, features)
    generator = torch.Generator().manual_seed(3)
    foretold = list(torch.randn(DEPTH, 2, TIME, WIDTH, generator=generator).double())
    hidden = features[..., -WIDTH:]
    spread = hidden.square().mean((0, 1)).sqrt()
    total, weights = 0.0, 0.0
    for index, text, at in torch.cartesian_prod(
        torch.arange(DEPTH), torch.arange(2), torch.arange(TIME)
    ).tolist():
        drafted = at + index + 2  # the token that the foretold hidden state leads to
        if drafted < LENGTHS[text]:
            weight = 1.0 if drafted >= PROMPTS[text] else 0.1
            given, true = foretold[index][text, at], hidden[text, at + index + 1]
            total += weight * smooth_l1_loss(given / spread, true / spread).item()
            weights += weight
    found = feature_loss(foretold, features, batch, 0.1).item()
    assert found == pytest.approx(total / weights, rel=1e-5)


def whole(network: Network, drafts: Drafts, weight: float) -> tuple[Tensor, list[Tensor]]:
    """`network_loss`, and `total_loss` of every exit, the deepest first."""
    features, tokens = texts(2, TIME)
    batch = batch_of(tokens, LENGTHS, PROMPTS, features)
    places = torch.arange(TINY.vocab_size).clamp_max(DRAFT_VOCABULARY - 1)
    teacher = torch.randn(2, TIME, DRAFT_VOCABULARY, generator=torch.Generator().manual_seed(2))
    given = (teacher, batch, places, find_loss("forward-kl"))
    how = {"decay": 0.8, "prompt_weight": 0.1}
    found = network_loss(network, drafts, features, *given, **how, feature_weight=weight)
    exits = (drafts.logits, *drafts.exits)
    return found, [total_loss(each, *given, **how) for each in exits]


@pytest.mark.parametrize("name", ["eagle3", "s2d", "eagle", "falcon", "chimera", "imitation"])
def test_the_whole_is_the_mean_over_exits_and_the_loss_on_hidden_states(name: str) -> None:
    features, tokens = texts(2, TIME)
    network = NETWORKS[name]()
    with torch.no_grad():
        drafts = module(network).draft(features, tokens)
        plainly, exits = whole(network, drafts, 0.0)
        beside, _ = whole(network, drafts, 2.0)
    torch.testing.assert_close(plainly, torch.stack(exits).mean())
    assert len(exits) == (2 if name == "s2d" else 1)
    if drafts.features:
        batch = batch_of(tokens, LENGTHS, PROMPTS, features)
        cosine = name == "imitation"
        extra = 2 * feature_loss(drafts.features, features, batch, 0.1, cosine)
        torch.testing.assert_close(beside, plainly + extra)
    else:
        assert name in ("eagle3", "s2d")
        assert beside == plainly


@pytest.mark.parametrize("name", ["eagle", "falcon", "imitation"])
def test_what_is_foretold_is_what_the_lm_head_reads(name: str) -> None:
    features, tokens = texts(1, TIME)
    trained = module(NETWORKS[name]())
    with torch.no_grad():
        found = trained.draft(features, tokens)
    head = trained.get_buffer("head")
    for hidden, logits in zip(found.features, found.logits, strict=False):
        torch.testing.assert_close(hidden @ head.T, logits)


def test_scales_are_those_of_the_features_they_meet() -> None:
    features, _ = features_and_ahead()
    rows = features.flatten(0, 1)
    inverse = 1 / rows.square().mean(0).sqrt()
    for name, part in (("eagle", slice(-WIDTH, None)), ("eagle3", slice(0, 3 * WIDTH))):
        trained = module(NETWORKS[name]())
        trained.fit_scale(rows)
        scale = trained.named()["hidden_scale" if name == "eagle" else "scale"]
        torch.testing.assert_close(scale.detach(), inverse[part])
