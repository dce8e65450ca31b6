"""Networks on every runtime draft what the plain evaluation drafts, in ragged batches."""

from __future__ import annotations

import numpy as np
import pytest
from tests.networks.cases import (
    NETWORKS,
    TINY,
    context_rows,
    texts,
)
from tests.networks.runners import IDS, RUNTIMES, Reference, ready

from paceline.networks.runner import Branch, ContextUpdate

GROWTH = ((5, 1, 3), (1, 2, 1), (2, 1, 4))
"""Rows that each of three sequences gains, draft by draft."""

every_runtime = pytest.mark.parametrize("runtime", RUNTIMES)


@every_runtime
@pytest.mark.parametrize("name", NETWORKS)
def test_greedy_drafts_are_those_of_the_plain_evaluation(name: str, runtime: str) -> None:
    trained, compiled = ready(runtime, name)
    network = trained.network
    features, tokens = texts(3, 16)
    caches = [compiled.open() for _ in range(3)]
    drafters = [Reference(trained) for _ in range(3)]
    begin = np.zeros(3, dtype=int)
    for gained in (*GROWTH, (1, 0, 0)):
        rows = {
            i: context_rows(network, features[i], tokens[i], begin[i], begin[i] + count)
            for i, count in enumerate(gained)
            if count
        }
        grown = [
            ContextUpdate(caches[i], read.astype(np.float32), behind)
            for i, (read, behind) in rows.items()
        ]
        for i, chain in zip(rows, compiled.draft(grown, network.depth), strict=True):
            follow = chain.tokens
            logits = drafters[i].draft(*rows[i], follow)
            distribution = np.exp(logits - logits.max(-1, keepdims=True))
            distribution /= distribution.sum(-1, keepdims=True)
            best = distribution.argmax(-1)
            ids = np.array([*IDS, -1])  # of the one column more that some have
            assert follow == ids[best].tolist()
            np.testing.assert_allclose(chain.chances, distribution.max(-1), atol=1e-4)
            np.put_along_axis(distribution, best[:, None], 0, -1)
            assert chain.runner_ups == ids[distribution.argmax(-1)].tolist()
            np.testing.assert_allclose(chain.runner_up_probs, distribution.max(-1), atol=1e-4)
        begin += gained
    for cache in caches:
        compiled.release(cache)


def path_of(branch: Branch) -> list[int]:
    """All tokens from the root down."""
    above = [] if branch.above is None else path_of(branch.above)
    return [*above, *branch.tokens]


@every_runtime
@pytest.mark.parametrize("name", [name for name in NETWORKS if name != "ctc"])
def test_every_branch_says_what_its_path_says_alone(name: str, runtime: str) -> None:
    """Bushy trees in a ragged batch, draft after draft; a call asks at several depths at once."""
    trained, compiled = ready(runtime, name)
    network = trained.network
    features, tokens = texts(2, 16)
    caches = [compiled.open() for _ in range(2)]
    random = np.random.default_rng(4)
    ends = [0, 0]
    for gained in ((5, 2), (2, 1)):
        grown = []
        for i, count in enumerate(gained):
            read, behind = context_rows(network, features[i], tokens[i], ends[i], ends[i] + count)
            ends[i] += count
            grown.append(ContextUpdate(caches[i], read.astype(np.float32), behind))
        known = [[root] for root in compiled.start(grown)]
        for _ in range(network.steps - 1):
            asked: list[tuple[Branch, list[int]]] = []
            for branches in known:
                inner = [b for b in branches if len(path_of(b)) < network.depth - network.width]
                for place in random.integers(len(inner), size=3):
                    asked.append((inner[place], random.choice(IDS, network.width).tolist()))
            for branch in compiled.advance(asked):
                known[caches.index(branch.cache)].append(branch)
        for i, branches in enumerate(known):
            whole = context_rows(network, features[i], tokens[i], 0, ends[i])
            for branch in branches:
                path = path_of(branch)
                follow = [*path, *[0] * network.depth]
                wanted = Reference(trained).draft(*whole, follow)
                wanted = wanted[len(path) : len(path) + network.width]
                np.testing.assert_allclose(branch.logits, wanted, atol=1e-3)


@every_runtime
@pytest.mark.parametrize("name", ["eagle3", "falcon", "hydra"])
def test_branches_hang_on_their_own_tokens(name: str, runtime: str) -> None:
    """Negative control: what a branch says differs where any step above it took another token."""
    trained, compiled = ready(runtime, name)
    network = trained.network
    features, tokens = texts(1, 4)
    read, behind = context_rows(network, features[0], tokens[0], 0, 3)
    grown = [ContextUpdate(compiled.open(), read.astype(np.float32), behind) for _ in range(2)]
    [root, _] = compiled.start(grown)
    width = network.width
    first = compiled.advance([(root, [2] * width), (root, [3] * width)])
    both = compiled.advance([(branch, [5] * width) for branch in first])
    assert np.abs(first[0].logits - first[1].logits).max() > 1e-3
    assert np.abs(both[0].logits - both[1].logits).max() > 1e-3


@pytest.mark.parametrize("size", [7, 60])
def test_long_contexts_are_taken_in_in_chunks(size: int, monkeypatch: pytest.MonkeyPatch) -> None:
    module = pytest.importorskip("paceline.runtimes.torch.runner")
    features = np.random.default_rng(3).standard_normal((60, 4 * TINY.hidden_size))
    for name in ("chimera", "eagle3"):
        _, compiled = ready("torch", name)
        drafts = []
        for chunk in (512, size):
            monkeypatch.setattr(module, "_CHUNK", chunk)
            grown = ContextUpdate(compiled.open(), features.astype(np.float32), [*range(12)] * 5)
            drafts += compiled.draft([grown], 4)
        assert drafts[0].tokens == drafts[1].tokens
        np.testing.assert_allclose(drafts[0].chances, drafts[1].chances, rtol=1e-4)


@every_runtime
def test_nothing_is_drafted_at_depth_0(runtime: str) -> None:
    """What is taken in is there for the next draft."""
    _, compiled = ready(runtime, "eagle3")
    features, tokens = texts(1, 8)
    read, behind = features[0, :5].numpy().astype(np.float32), tokens[0, 1:6].tolist()
    whole, apart = compiled.open(), compiled.open()
    assert compiled.draft([ContextUpdate(apart, read[:4], behind[:4])], 0) == []
    [once] = compiled.draft([ContextUpdate(whole, read, behind)], 4)
    [twice] = compiled.draft([ContextUpdate(apart, read[4:], behind[4:])], 4)
    assert once.tokens == twice.tokens
    np.testing.assert_allclose(once.chances, twice.chances, rtol=1e-4)


@every_runtime
@pytest.mark.parametrize("name", ["clover", "falcon", "longspec-of-two", "s2d"])
def test_branches_are_right_where_blocks_and_windows_end(name: str, runtime: str) -> None:
    """Contexts that fill blocks of 32 rows, nearly and just, and such that have left a window."""
    trained, compiled = ready(runtime, name)
    network = trained.network
    counts = (30, 31, 32, 33)
    features, tokens = texts(4, 40)
    caches = [compiled.open() for _ in counts]
    known: list[list[Branch]] = []
    rows = [context_rows(network, features[i], tokens[i], 0, n) for i, n in enumerate(counts)]
    for part in (slice(0, -2), slice(-2, None)):  # windows slide between two drafts
        grown = [
            ContextUpdate(cache, read[part].astype(np.float32), behind[part])
            for cache, (read, behind) in zip(caches, rows, strict=True)
        ]
        known = [[root] for root in compiled.start(grown)]
    for _ in range(network.steps - 1):
        asked = [(each[-1], [IDS[2]] * network.width) for each in known]
        for branches, branch in zip(known, compiled.advance(asked), strict=True):
            branches.append(branch)
    for branches, whole in zip(known, rows, strict=True):
        follow = [int(IDS[2])] * network.depth
        wanted = Reference(trained).draft(*whole, follow)
        found = np.concatenate([branch.logits for branch in branches])
        np.testing.assert_allclose(found, wanted, atol=1e-3)
