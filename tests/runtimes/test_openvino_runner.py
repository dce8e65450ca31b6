"""The CPU's runner of drafter networks: depths, chunks, memory. What it drafts is tested beside the
networks (tests/networks)."""

from __future__ import annotations

import numpy as np
import pytest

pytest.importorskip("openvino")
pytest.importorskip("torch")

from tests.networks.cases import GEOMETRY, NETWORKS, module

from paceline.errors import OutOfMemory
from paceline.networks.base import Network
from paceline.networks.runner import Grown
from paceline.networks.weights import Trained
from paceline.runtimes.openvino_runner import OpenVinoRunner

IDS = np.array([0, 1, 3, 4, 6, 7, 9, 10, 12, 13, 16])  # of a vocabulary of 17
SETTINGS = {
    "INFERENCE_NUM_THREADS": "1",
    "INFERENCE_PRECISION_HINT": "f32",
    "KV_CACHE_PRECISION": "f32",
}


def parts(network: Network) -> OpenVinoRunner:
    """A runner with random weights."""
    trained = module(network)
    embedding = trained.get_buffer("embedding").float().numpy()
    full = np.zeros((GEOMETRY.vocab_size, GEOMETRY.width), dtype=np.float32)
    full[IDS] = trained.get_buffer("head").float().numpy()
    target = {"embed.weight": embedding, "lm_head.weight": full}
    weights = {name: each.detach().float().numpy() for name, each in trained.named().items()}
    runner = OpenVinoRunner(
        Trained(network, weights, IDS, {}),
        target,
        SETTINGS,
        precision="fp32",
        max_context=128,
        kv_tokens=512,
    )
    return runner


def test_a_shallower_draft_is_the_head_of_the_deepest() -> None:
    network = NETWORKS["hydra"]()
    runner = parts(network)
    features = np.ones((3, 4 * GEOMETRY.width), dtype=np.float32)
    whole = runner.draft([Grown(runner.open(), features, [1, 2, 3])], 4)[0]
    for depth in (1, 2, 3):
        chain = runner.draft([Grown(runner.open(), features, [1, 2, 3])], depth)[0]
        assert chain.tokens.tolist() == whole.tokens[:depth].tolist()


def test_long_contexts_are_taken_in_in_chunks(monkeypatch: pytest.MonkeyPatch) -> None:
    features = np.random.default_rng(3).standard_normal((60, 4 * GEOMETRY.width))
    grown = features.astype(np.float32), [*range(12)] * 5
    for name in ("chimera", "eagle3"):
        runner = parts(NETWORKS[name]())
        whole = runner.draft([Grown(runner.open(), *grown)], 4)[0]
        with monkeypatch.context() as patch:
            patch.setattr("paceline.runtimes.openvino_runner._CHUNK", 17)
            pieces = runner.draft([Grown(runner.open(), *grown)], 4)[0]
        assert pieces.tokens.tolist() == whole.tokens.tolist()
        np.testing.assert_allclose(pieces.chances, whole.chances, rtol=1e-4)


def test_released_memory_is_used_again_and_a_full_cache_is_said() -> None:
    runner = parts(NETWORKS["eagle3"]())
    features = np.ones((300, 4 * GEOMETRY.width), dtype=np.float32)
    for _ in range(8):
        cache = runner.open()
        runner.draft([Grown(cache, features[:100], [1] * 100)], 1)
        runner.release(cache)
    runner.draft([Grown(runner.open(), features, [1] * 300)], 1)
    with pytest.raises(OutOfMemory):
        runner.draft([Grown(runner.open(), features, [1] * 300)], 1)


def test_branches_give_their_blocks_back_with_the_next_draft() -> None:
    """Also after a step that found no room, and with the sequence."""
    runner = parts(NETWORKS["eagle3"]())
    features = np.ones((40, 4 * GEOMETRY.width), dtype=np.float32)
    cache = runner.open()
    free = cache.paged.pool.free
    [root] = runner.start([Grown(cache, features, [1] * 40)])
    held = free - cache.paged.pool.free
    branches = runner.advance([(root, [2])] * (free - held - 1))
    with pytest.raises(OutOfMemory):
        runner.advance([(branch, [2]) for branch in branches[:2]])
    assert cache.paged.pool.free == 0
    [again] = runner.start([Grown(cache, features[:1], [1])])
    assert free - cache.paged.pool.free == held
    np.testing.assert_array_equal(again.logits.shape, root.logits.shape)
    runner.advance([(again, [2])])
    runner.release(cache)
    assert cache.paged.pool.free == free
