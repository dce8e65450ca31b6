"""The CPU's runner of drafter networks: depths, chunks, memory. What it drafts is tested beside the
networks (tests/networks)."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

pytest.importorskip("torch")

from tests.networks import runners
from tests.networks.cases import NETWORKS, TINY, module

from paceline.errors import OutOfMemory
from paceline.networks.runner import ContextUpdate
from paceline.runtimes.kv_cache import BLOCK


def parts(name: str) -> Any:
    """A runner with random weights."""
    return runners.runner("cpu", module(NETWORKS[name]()), max_context=310, kv_tokens=512)


def test_a_shallower_draft_is_the_head_of_the_deepest() -> None:
    runner = parts("hydra")
    features = np.ones((3, 4 * TINY.hidden_size), dtype=np.float32)
    whole = runner.draft([ContextUpdate(runner.open(), features, [1, 2, 3])], 4)[0]
    for depth in (1, 2, 3):
        chain = runner.draft([ContextUpdate(runner.open(), features, [1, 2, 3])], depth)[0]
        assert chain.tokens == whole.tokens[:depth]


def test_long_contexts_are_taken_in_in_chunks(monkeypatch: pytest.MonkeyPatch) -> None:
    features = np.random.default_rng(3).standard_normal((60, 4 * TINY.hidden_size))
    grown = features.astype(np.float32), [*range(12)] * 5
    for name in ("chimera", "eagle3"):
        runner = parts(name)
        whole = runner.draft([ContextUpdate(runner.open(), *grown)], 4)[0]
        with monkeypatch.context() as patch:
            patch.setattr("paceline.runtimes.cpu.networks.runner._CHUNK", 17)
            pieces = runner.draft([ContextUpdate(runner.open(), *grown)], 4)[0]
        assert pieces.tokens == whole.tokens
        np.testing.assert_allclose(pieces.chances, whole.chances, rtol=1e-4)


def test_released_memory_is_used_again_and_a_full_cache_is_said() -> None:
    runner = parts("eagle3")
    features = np.ones((300, 4 * TINY.hidden_size), dtype=np.float32)
    for _ in range(8):
        cache = runner.open()
        runner.draft([ContextUpdate(cache, features[:100], [1] * 100)], 1)
        runner.release(cache)
    runner.draft([ContextUpdate(runner.open(), features, [1] * 300)], 1)
    with pytest.raises(OutOfMemory):
        runner.draft([ContextUpdate(runner.open(), features, [1] * 300)], 1)


def test_branches_give_their_blocks_back_with_the_next_draft() -> None:
    """Also after a step that found no room, and with the sequence."""
    runner = parts("eagle3")
    features = np.ones((40, 4 * TINY.hidden_size), dtype=np.float32)
    cache = runner.open()
    free = cache.paged.pool.free
    [root] = runner.start([ContextUpdate(cache, features, [1] * 40)])
    held = free - cache.paged.pool.free
    branches = runner.advance([(root, [2])] * (free * BLOCK - 40))
    with pytest.raises(OutOfMemory):
        runner.advance([(branch, [2]) for branch in branches[:2]])
    assert cache.paged.pool.free == 0
    [again] = runner.start([ContextUpdate(cache, features[:1], [1])])
    assert free - cache.paged.pool.free == held
    np.testing.assert_array_equal(again.logits.shape, root.logits.shape)
    runner.advance([(again, [2])])
    runner.release(cache)
    assert cache.paged.pool.free == free
