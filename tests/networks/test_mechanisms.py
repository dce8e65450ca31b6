"""What each paper adds to a network, by what reaches what; a wrong architecture fails it.

An input reaches a draft if the draft changes with it. Every network stands beside a wrong one.
"""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from tests.networks.cases import GEOMETRY, module, texts
from torch import Tensor

from paceline.networks.base import Network
from paceline.networks.blocks import lstm
from paceline.networks.ops import Ops, Rows, Sight
from paceline.networks.torch_ops import TorchOps
from paceline.training.module import DraftModule
from paceline.zoo.networks.falcon import Falcon

TIME, AT, WIDTH = 9, 4, GEOMETRY.width
ROOT = AT + 1

Change = Callable[[DraftModule, Tensor, Tensor], None]


def reached(network: Network, change: Change, off: str = "") -> list[bool]:
    """Of every depth behind position `AT`, whether its draft changes; parameter `off` is zero."""
    drafts = []
    for each in (None, change):
        trained, (features, tokens) = module(network), texts(1, TIME)
        with torch.no_grad():
            if off:
                trained.named()[off].zero_()
            if each is not None:
                each(trained, features, tokens)
            drafts.append(torch.stack(trained(features, tokens))[:, 0, AT])
    return (drafts[0] - drafts[1]).abs().amax(-1).gt(1e-9).tolist()


def token(place: int) -> Change:
    """Another token there."""

    def change(_: DraftModule, features: Tensor, tokens: Tensor) -> None:
        tokens[0, place] = (tokens[0, place] + 1) % 17

    return change


class CausalBlocks(Falcon):
    """Rows of a block see those before them alone."""

    def start(self, ops: Ops, features: Rows, tokens: Rows) -> Rows:
        x = self._fuse(ops, features[..., -WIDTH:], tokens)
        return ops.last(self._layer(ops, x, "context"), self.width)

    def _layer(self, ops: Ops, x: Rows, sees: Sight) -> Rows:
        return super()._layer(ops, x, "draft" if sees == "block" else sees)


@pytest.mark.parametrize(
    ("network", "relaxed"), [(Falcon, True), (CausalBlocks, False)], ids=["falcon", "causal"]
)
def test_all_rows_of_a_falcon_block_see_one_another_the_first_block_too(
    network: type[Falcon], relaxed: bool
) -> None:
    """Row j of a block reads token j; the first of it sees the last only through the mask."""
    made = network(GEOMETRY, steps=3)
    attention = "layer.o.residual"
    assert reached(made, token(ROOT)) == [relaxed, True, relaxed or True, True, True, True]
    assert reached(made, token(ROOT + 2))[2:4] == [relaxed, True]
    assert reached(made, token(ROOT + 2), attention)[2:4] == [False, True]
    assert reached(made, token(ROOT), attention)[:2] == [False, True]
    assert reached(made, token(ROOT + 1))[:3] == [False, False, True]


@pytest.mark.parametrize("wrong", [False, True])
def test_the_lstm_of_falcon_is_that_of_torch(wrong: bool) -> None:
    """Over texts of one row, where no state is carried; a matrix in its place is not."""
    generator = torch.Generator().manual_seed(0)
    reference = torch.nn.LSTM(2 * WIDTH, WIDTH, 2, bias=False)
    gates = {}
    with torch.no_grad():
        for layer, inputs in enumerate((2 * WIDTH, WIDTH)):
            mine = torch.randn(3, WIDTH, inputs, generator=generator) / 4
            gates[f"lstm.{layer}"] = mine.flatten(0, 1)
            theirs = reference.get_parameter(f"weight_ih_l{layer}").view(4, WIDTH, inputs)
            theirs[[0, 2, 3]] = mine  # torch orders them: input, forget, cell, output
    ops = TorchOps(GEOMETRY, gates, torch.zeros(1), torch.zeros(1))
    x = torch.randn(1, 6, 2 * WIDTH, generator=generator)
    if wrong:
        found = x @ gates["lstm.0"][:WIDTH].T
    else:
        found = lstm(ops, "lstm.1", lstm(ops, "lstm.0", x, WIDTH), WIDTH)
    expected, _ = reference(x)
    assert torch.allclose(found, expected, atol=1e-6) != wrong
