"""Layers that PyTorch targets lend are those that the CPU runtime lends."""

from __future__ import annotations

import numpy as np
import pytest

torch = pytest.importorskip("torch")

from paceline.errors import InvalidOption  # noqa: E402
from paceline.models.llama import Llama  # noqa: E402
from paceline.networks.base import Geometry  # noqa: E402
from paceline.networks.kangaroo import Kangaroo  # noqa: E402
from paceline.runtimes.openvino_weights import prepare  # noqa: E402
from paceline.runtimes.torch_lent import lent  # noqa: E402
from tiny import random_tensors, tiny_config  # noqa: E402

CONFIG = tiny_config(layers=3)
TENSORS = random_tensors(CONFIG)
LLAMA = Llama.build(CONFIG, TENSORS, torch.device("cpu"), torch.float32)


def test_what_is_lent_has_the_names_and_numbers_of_prepared_weights() -> None:
    network = Kangaroo(Geometry.of(CONFIG), exit=2)
    prepared = prepare(CONFIG, TENSORS, "fp32")  # type: ignore[arg-type]  # a dict will do
    found = lent(network, LLAMA)
    assert found.keys() == network.borrowed().keys()
    for mine, theirs in network.borrowed().items():
        wanted = prepared[theirs if theirs in prepared else f"{theirs}.weight"]
        np.testing.assert_array_equal(found[mine].numpy(), wanted)


def test_layers_that_the_target_lacks_are_named() -> None:
    with pytest.raises(InvalidOption, match="runs 4 layers of its target, which has fewer"):
        lent(Kangaroo(Geometry.of(CONFIG), exit=4), LLAMA)
