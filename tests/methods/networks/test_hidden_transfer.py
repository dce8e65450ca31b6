"""Hidden transfer: the layers that pseudo states run through are the target's own last ones."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from tests.helpers.target_contract import all_rows
from tests.helpers.tiny_model import named_tensors, tiny_config
from tests.networks.cases import NETWORKS, TINY, module, texts
from torch import Tensor

from paceline.errors import InvalidOption
from paceline.lab.training.module import DraftModule, share_target_weights
from paceline.methods.networks.hidden_transfer import HiddenTransfer
from paceline.networks.base import config_from, describe, drafter_config
from paceline.networks.catalogue import build
from paceline.networks.torch_ops import NetworkTensors, TextAttention, TorchOps
from paceline.runtimes.torch.runner import target_weights_for
from paceline.runtimes.torch.target import TorchTarget

CONFIG = tiny_config(layers=7)  # of which the last three follow the high layer
TENSORS = named_tensors(CONFIG)
SHAPE = drafter_config(CONFIG)
WIDTH = CONFIG.hidden_size
TOKENS = [5, 9, 60, 9, 3, 22, 41, 7]


@pytest.fixture(scope="module")
def target() -> TorchTarget:
    return TorchTarget(CONFIG, TENSORS)


@pytest.fixture(scope="module")
def features(target: TorchTarget) -> Tensor:
    found = target.prefill(target.open(), TOKENS, True)
    assert found is not None
    return torch.from_numpy(found)[None]


def with_layers(layers: dict[str, Tensor]) -> TorchOps:
    norm = torch.from_numpy(TENSORS["norm"])
    nothing = torch.zeros(1, WIDTH)
    weights = NetworkTensors({**layers, "norm": norm}, nothing, nothing)
    return TorchOps(weights, SHAPE.norm_eps, TextAttention())


def target_weights(network: HiddenTransfer) -> dict[str, Tensor]:
    arrays = share_target_weights(network, CONFIG, TENSORS)  # type: ignore[arg-type]  # a dict has what it needs
    return {name: torch.from_numpy(each) for name, each in arrays.items()}


@pytest.mark.parametrize("wrong", [False, True])
def test_the_text_runs_through_the_targets_own_layers(
    target: TorchTarget, features: Tensor, wrong: bool
) -> None:
    """What enters each of the last layers is what enters the target's; the control swaps two."""
    network = HiddenTransfer(SHAPE)
    layers = target_weights(network)
    if wrong:
        layers |= {
            name.replace(f"layers.{a}.", f"layers.{b}."): layers[name]
            for a, b in ((4, 5), (5, 4))
            for name in layers
            if name.startswith(f"layers.{a}.")
        }
    found = network.below(with_layers(layers), features)
    for each, rows in enumerate(found):
        [out] = target.forward(
            [all_rows(target.open(), TOKENS)], tuple(range(network.runs.start + each))
        )
        same = np.allclose(rows[0, :, 0].numpy(), out.state, atol=1e-4)
        assert same == (not wrong or each == 0)


def test_both_ways_to_borrow_give_the_same_layers(target: TorchTarget) -> None:
    network = HiddenTransfer(SHAPE)
    assert list(network.runs) == [4, 5, 6]
    wanted = target_weights_for(network, target._network)
    found = target_weights(network)
    assert list(found) == list(wanted) == network.target_weights()
    assert all(torch.equal(found[name], wanted[name].cpu()) for name in found)


class Right(HiddenTransfer):
    """Pseudo states that are the hidden states which they stand for."""

    def below(self, ops: Any, features: Any) -> list[Tensor]:
        found = super().below(ops, features)
        self.ahead = [each.roll(-1, dims=1) for each in found]
        return found

    def layer(self, ops: Any, layer: int, x: Any, sees: Any) -> Any:
        if sees == "draft" and layer == self.enters[self.now]:
            x = torch.roll(self.ahead[layer], -self.now, dims=1)
        out = super().layer(ops, layer, x, sees)
        if sees == "draft" and layer == self.above - 1:
            self.now += 1
        return out


def test_right_pseudo_states_are_the_targets_next_hidden_states(features: Tensor) -> None:
    """If the maps were perfect, all slots would say what the target says there."""
    network = Right(SHAPE, width=3)
    network.now = 0
    assert network.enters == [0, 1, 2]
    layers = target_weights(network)
    zeros = {name: torch.zeros(shape) for name, shape in network.shapes().items()}
    ops = with_layers(layers | zeros)
    state = network.start(ops, features, torch.tensor([TOKENS]))
    found = ops.norm(state, "norm")
    for at in range(len(TOKENS) - 3):
        true = features[0, at + 1 : at + 4, 3 * WIDTH :]
        torch.testing.assert_close(found[0, at], true, atol=1e-4, rtol=1e-4)
    assert not torch.allclose(found[0, 0], found[0, 1], atol=1e-2)


def test_a_pseudo_state_sees_those_before_it_alone() -> None:
    features, tokens = texts(1, 6)
    trained = module(NETWORKS["hidden-transfer"]())
    with torch.no_grad():
        before = trained(features, tokens)
        trained.named()["transfer.1.residual"] += 1  # the second of three
        after = trained(features, tokens)
    assert torch.equal(before[0], after[0])
    for depth in (1, 2):
        assert (before[depth] - after[depth]).abs().amax(-1).min() > 1e-6


class Watched(HiddenTransfer):
    """Notes what enters the first layer, and leaves it as it is."""

    def layer(self, ops: Any, layer: int, x: Any, sees: Any) -> Any:
        if sees == "draft" and layer == 0:
            self.seen = x
        return x


def test_maps_move_a_copy_of_the_newest_state_in_its_own_units(features: Tensor) -> None:
    """A step of the maps moves every axis by what it measures, however large that is."""
    network = Watched(SHAPE, width=2, entries=1)
    tokens, table = torch.tensor([TOKENS]), torch.zeros(CONFIG.vocab_size, WIDTH)
    trained = DraftModule(network, table, table, torch.Generator(), target_weights(network))
    features = features * torch.logspace(-1, 2, 4 * WIDTH)
    trained.fit_scale(features[0])
    high = features[..., 2 * WIDTH : 3 * WIDTH]
    with torch.no_grad():
        trained(features, tokens)
        torch.testing.assert_close(network.seen[:, :, 0], high)
        for each in range(2):
            trained.named()[f"transfer.{each}.residual"].fill_(1.0)
        trained(features, tokens)
    moved = network.seen[0, :, 0] - high[0]
    relative = moved / high[0].square().mean(0).sqrt()
    torch.testing.assert_close(relative, relative[:, :1].expand_as(relative), atol=1e-2, rtol=1e-2)
    assert relative.abs().max() > 0.1


def test_pseudo_states_enter_at_several_layers_or_at_one() -> None:
    enters = {each: HiddenTransfer(SHAPE, width=4, entries=each).enters for each in range(4)}
    assert enters == {0: [0, 0, 1, 2], 1: [0] * 4, 2: [0, 0, 1, 1], 3: [0, 0, 1, 2]}
    with pytest.raises(InvalidOption, match="entries must be 0 to 3"):
        HiddenTransfer(SHAPE, entries=4)


def test_how_many_layers_the_target_has_is_told_where_it_counts() -> None:
    entry = describe(HiddenTransfer(TINY))
    assert config_from(entry["geometry"]) == TINY
    other = describe(build("hydra", TINY, {}))
    assert config_from(other["geometry"]) == replace(TINY, layers=0)
    with pytest.raises(InvalidOption, match="target_layers of a geometry must be 1 or more"):
        HiddenTransfer(replace(TINY, layers=0))
    with pytest.raises(InvalidOption, match="target_layers of a geometry must be a positive"):
        config_from({**entry["geometry"], "target_layers": -1})
