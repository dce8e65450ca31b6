"""Windows that slide on the CPU runtime, and layers that a target does not lend."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

pytest.importorskip("torch")

from tests.networks.cases import TINY, context_rows, module, texts
from tests.networks.runners import IDS, Reference, cpu_runner, runner

from paceline.errors import InvalidOption
from paceline.methods.networks.kangaroo import Kangaroo
from paceline.methods.networks.longspec import LongSpec
from paceline.networks.runner import ContextUpdate
from paceline.networks.weights import Trained


@pytest.mark.parametrize("reach", [3, 40])
def test_a_window_is_exact(reach: int) -> None:
    trained = module(LongSpec(TINY, steps=3, reach=reach, cross=False))
    network = trained.network
    compiled: Any = runner("cpu", trained, max_context=300)
    features, tokens = texts(1, 230)
    cache, drafter = compiled.open(), Reference(trained)
    begin = 0
    for gained in (70, 1, 3, 60, 30, 1, 40, 2):
        read, behind = context_rows(network, features[0], tokens[0], begin, begin + gained)
        (chain,) = compiled.draft(
            [ContextUpdate(cache, read.astype(np.float32), behind)], network.depth
        )
        logits = drafter.draft(read, behind, chain.tokens)
        assert chain.tokens == IDS[logits.argmax(-1)].tolist()
        distribution = np.exp(logits - logits.max(-1, keepdims=True))
        np.testing.assert_allclose(
            chain.chances, (distribution / distribution.sum(-1, keepdims=True)).max(-1), atol=1e-4
        )
        begin += gained


def test_layers_that_the_target_lacks_are_named() -> None:
    trained = module(Kangaroo(TINY, exit=2))
    width = TINY.hidden_size
    held = {"embed": np.zeros((17, width), np.float32), "layers.0.attention_norm": np.ones(width)}
    with pytest.raises(InvalidOption, match="runs layers of its target that are not there"):
        cpu_runner(Trained(trained.network, {}, IDS, {}), held)
