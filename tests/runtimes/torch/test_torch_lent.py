"""Layers that PyTorch targets lend are those that the CPU runtime lends."""

from __future__ import annotations

import numpy as np
import pytest

torch = pytest.importorskip("torch")

from tests.helpers.tiny_model import named_tensors, tiny_config  # noqa: E402

from paceline.errors import InvalidOption  # noqa: E402
from paceline.methods.networks.kangaroo import Kangaroo  # noqa: E402
from paceline.networks.base import drafter_config  # noqa: E402
from paceline.runtimes.torch.model import TorchModel  # noqa: E402
from paceline.runtimes.torch.runner import target_weights_for  # noqa: E402

CONFIG = tiny_config(layers=3)
TENSORS = named_tensors(CONFIG)
MODEL = TorchModel(CONFIG, TENSORS, torch.device("cpu"), torch.float32)


def test_what_is_lent_is_what_the_names_say() -> None:
    network = Kangaroo(drafter_config(CONFIG), exit=2)
    found = target_weights_for(network, MODEL)
    assert list(found) == network.target_weights()
    assert {"layers.0.q", "layers.1.down"} < found.keys()
    for name, each in found.items():
        np.testing.assert_array_equal(each.numpy(), TENSORS[name])


def test_layers_that_the_target_lacks_are_named() -> None:
    with pytest.raises(InvalidOption, match="runs 4 layers of its target, which has fewer"):
        target_weights_for(Kangaroo(drafter_config(CONFIG), exit=4), MODEL)
