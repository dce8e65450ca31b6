"""What only the CPU runtime does with networks: windows that slide, and layers that it lends."""

from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np
import pytest

pytest.importorskip("openvino")

from tests.networks.cases import GEOMETRY, NETWORKS, context_rows, module, plain, texts
from tests.networks.plain_ops import PlainDrafter
from tests.networks.runners import IDS, runner

from paceline.errors import InvalidOption
from paceline.networks.kangaroo import Kangaroo
from paceline.networks.runner import ContextUpdate
from paceline.networks.weights import Trained
from paceline.runtimes.cpu.native.runner import NativeRunner
from paceline.runtimes.cpu.openvino.runner import OpenVinoRunner
from paceline.runtimes.kv_cache import BLOCK
from paceline.zoo.networks.longspec import LongSpec


@pytest.mark.parametrize("reach", [3, 40])
def test_a_window_is_exact_and_its_cache_does_not_grow(
    reach: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Positions go on while blocks leave, and what has left is what no row sees."""
    monkeypatch.setattr("paceline.runtimes.cpu.openvino.runner._FEW", ())  # one graph for all
    trained = module(LongSpec(GEOMETRY, steps=3, reach=reach))
    network = trained.network
    compiled: Any = runner("openvino", trained, max_context=300)
    features, tokens = texts(1, 230)
    cache, drafter = compiled.open(), PlainDrafter(network, plain(trained))
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
        held = cache.paged.length + network.depth
        assert held <= reach + BLOCK + gained + network.depth
        assert len(cache.paged.blocks) <= -(-held // BLOCK) + 1
    assert cache.left + cache.paged.length == begin


@pytest.mark.parametrize("name", ["medusa", "hidden-transfer", "falcon", "eagle3"])
def test_graphs_of_all_steps_are_ready_before_they_are_wanted(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of networks of one step, too; and a lone sequence's drafts compile nothing more."""
    monkeypatch.setattr("paceline.runtimes.cpu.openvino.runner._FEW", (1, 4))
    trained = module(NETWORKS[name]())
    compiled: Any = runner("openvino", trained)
    compiled.warm_up()
    ready = set(compiled._instances)
    features, tokens = texts(1, 8)
    read, behind = context_rows(trained.network, features[0], tokens[0], 0, 3)
    for depth in range(1, trained.network.depth + 1):
        grown = ContextUpdate(compiled.open(), read.astype(np.float32), behind)
        assert len(compiled.draft([grown], depth)[0].tokens) == depth
    assert set(compiled._instances) == ready


@pytest.mark.parametrize("native", [False, True])
def test_layers_that_the_target_lacks_are_named(native: bool) -> None:
    trained = module(Kangaroo(GEOMETRY, exit=2))
    target = {"embed.weight": np.zeros((17, 8), np.float32), "layers.0.attention_norm": np.ones(8)}
    sizes: Any = {"precision": "fp32", "max_context": 64, "kv_tokens": 512}
    empty = Trained(trained.network, {}, IDS, {})
    make: Any = partial(NativeRunner, threads=1) if native else partial(OpenVinoRunner, settings={})
    with pytest.raises(InvalidOption, match="runs 2 layers of its target, which has fewer"):
        make(empty, target, **sizes)
