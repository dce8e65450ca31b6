"""Layers that PyTorch targets lend are those that the CPU runtime lends."""

from __future__ import annotations

import numpy as np
import pytest

torch = pytest.importorskip("torch")

from tests.helpers.tiny_model import named_tensors, tiny_config  # noqa: E402

from paceline.errors import InvalidOption  # noqa: E402
from paceline.methods.networks.kangaroo import Kangaroo  # noqa: E402
from paceline.networks.base import FUSED, Geometry  # noqa: E402
from paceline.runtimes.torch.model import TorchModel  # noqa: E402
from paceline.runtimes.torch.runner import target_weights_for  # noqa: E402

CONFIG = tiny_config(layers=3)
TENSORS = named_tensors(CONFIG)
MODEL = TorchModel(CONFIG, TENSORS, torch.device("cpu"), torch.float32)


def test_what_is_lent_is_what_the_names_say() -> None:
    network = Kangaroo(Geometry.of(CONFIG), exit=2)
    found = target_weights_for(network, MODEL)
    assert found.keys() == network.target_weights().keys()
    for mine, theirs in network.target_weights().items():
        layer, _, part = theirs.rpartition(".")
        wanted = [TENSORS[f"{layer}.{each}"] for each in FUSED.get(part, (part,))]
        np.testing.assert_array_equal(found[mine].numpy(), np.concatenate(wanted))


def test_layers_that_the_target_lacks_are_named() -> None:
    with pytest.raises(InvalidOption, match="runs 4 layers of its target, which has fewer"):
        target_weights_for(Kangaroo(Geometry.of(CONFIG), exit=4), MODEL)
