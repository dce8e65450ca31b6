"""LongSpec: a window that is exact in memory that does not grow, and a target that lends rows."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from tests.helpers.tiny_model import named_tensors, tiny_config
from tests.networks.cases import GEOMETRY, context_rows, module, plain, texts
from tests.networks.plain_ops import PlainDrafter
from tests.networks.runners import IDS, runner
from torch import Tensor

from paceline.errors import InvalidOption, RuntimeUnavailable
from paceline.networks.base import Geometry
from paceline.networks.runner import Branch, ContextUpdate
from paceline.networks.torch_ops import TorchOps
from paceline.runtimes.torch.cache import TorchCache
from paceline.runtimes.torch.runner import TorchRunner
from paceline.runtimes.torch.target import TorchTarget
from paceline.training.module import DraftModule, share_target_weights
from paceline.zoo.networks.longspec import LongSpec


def lending(trained: DraftModule, features: Tensor, rows: int) -> TorchCache:
    """A target's cache of so many rows: right in the layer that is read, far off elsewhere."""
    shape, network = GEOMETRY, trained.network
    ops = TorchOps(
        shape, trained.target_weights(), trained.get_buffer("embedding"), torch.zeros(1, 8)
    )
    with torch.no_grad():
        high = features[:rows, 2 * shape.width : 3 * shape.width]
        read = ops.linear(ops.norm(high, "target.0.norm"), "target.0.qkv")
        wide, narrow = shape.heads * shape.head_dim, shape.kv_heads * shape.head_dim
        _, keys, values = (x[None] for x in ops.split(read, (wide, narrow, narrow)))
        ops.know_target(lambda: (keys, values))
    data = torch.full((shape.target_layers, 2, shape.kv_heads, rows + 3, shape.head_dim), 1e3)
    for kind, each in enumerate(ops._target):
        data[network.runs.start, kind, :, :rows] = each[0].transpose(0, 1).float()
    return TorchCache(data, rows)


def across(reach: int, steps: int = 3) -> tuple[DraftModule, TorchRunner]:
    trained = module(LongSpec(GEOMETRY, steps=steps, reach=reach, cross=True))
    compiled: Any = runner("torch", trained)
    return trained, compiled


def test_chains_and_branches_over_lent_rows_are_those_of_the_plain_evaluation() -> None:
    """A ragged batch, draft after draft, with a window that rows have left."""
    trained, compiled = across(reach=3)
    network, (features, tokens) = trained.network, texts(2, 20)
    caches, ends = [compiled.open() for _ in range(2)], [0, 0]
    for gained in ((4, 9), (1, 3), (5, 1)):
        grown, whole = [], []
        for i, count in enumerate(gained):
            read, behind = context_rows(network, features[i], tokens[i], ends[i], ends[i] + count)
            ends[i] += count
            lent = lending(trained, features[i], ends[i])
            grown.append(ContextUpdate(caches[i], read.astype(np.float32), behind, lent))
            whole.append(context_rows(network, features[i], tokens[i], 0, ends[i]))
        known: list[list[Branch]] = [[root] for root in compiled.start(grown)]
        for _ in range(network.steps - 1):
            asked = [(each[-1], [int(IDS[2])]) for each in known]
            for branches, branch in zip(known, compiled.advance(asked), strict=True):
                branches.append(branch)
        for branches, rows in zip(known, whole, strict=True):
            wanted = PlainDrafter(network, plain(trained)).draft(*rows, [int(IDS[2])] * 3)
            found = np.concatenate([branch.logits for branch in branches])
            np.testing.assert_allclose(found, wanted, atol=1e-3)


@pytest.mark.parametrize("cross", [False, True])
@pytest.mark.parametrize("reach", [1, 3, 40])
def test_a_window_is_exact_and_its_cache_does_not_grow(reach: int, cross: bool) -> None:
    """Positions go on while rows leave, and what has left is what no row sees."""
    trained = module(LongSpec(GEOMETRY, steps=3, reach=reach, cross=cross))
    network, compiled = trained.network, runner("torch", trained, max_context=300)
    features, tokens = texts(1, 230)
    cache, drafter = compiled.open(), PlainDrafter(network, plain(trained))
    begin = 0
    for gained in (70, 1, 3, 60, 30, 1, 40, 2):
        read, behind = context_rows(network, features[0], tokens[0], begin, begin + gained)
        begin += gained
        lent = lending(trained, features[0], begin) if cross else None
        grown = ContextUpdate(cache, read.astype(np.float32), behind, lent)
        (chain,) = compiled.draft([grown], network.depth)
        logits = drafter.draft(read, behind, chain.tokens)
        assert chain.tokens == IDS[logits.argmax(-1)].tolist()
        distribution = np.exp(logits - logits.max(-1, keepdims=True))
        sure = (distribution / distribution.sum(-1, keepdims=True)).max(-1)
        np.testing.assert_allclose(chain.chances, sure, atol=1e-4)
        assert cache.rows.length <= 2 * reach + gained
    assert cache.left + cache.rows.length == begin


def test_what_is_lent_is_not_copied() -> None:
    trained, compiled = across(reach=3)
    features, tokens = texts(1, 9)
    lent = lending(trained, features[0], 6)
    read, behind = context_rows(trained.network, features[0], tokens[0], 0, 6)
    cache = compiled.open()
    compiled.draft([ContextUpdate(cache, read.astype(np.float32), behind, lent)], 2)
    assert cache.target is not None
    assert cache.target.data_ptr() == lent.data[trained.network.runs.start].data_ptr()
    assert cache.target.shape[2] == 6
    compiled.release(cache)
    assert cache.target is None


@pytest.mark.parametrize("layer", [3, 4, 5])
def test_rows_made_in_training_are_those_that_the_target_keeps(layer: int) -> None:
    """Of the layer that the high features enter, and of no other."""
    config = tiny_config(layers=7)
    tensors = named_tensors(config)
    target = TorchTarget(config, tensors)
    shape, cache = Geometry.of(config), target.open()
    tokens = [5, 9, 60, 9, 3, 22]
    features = target.prefill(cache, tokens, True)
    assert features is not None
    network = LongSpec(shape, cross=True)
    assert network.runs.start == 4
    weights = share_target_weights(network, config, tensors)  # type: ignore[arg-type]  # a dict has what it needs
    assert weights.keys() == {"target.0.norm", "target.0.qkv"}
    generator, table = torch.Generator(), torch.zeros(config.vocab_size, config.hidden_size)
    lent = {name: torch.from_numpy(each) for name, each in weights.items()}
    trained = DraftModule(network, table, table, generator, lent)
    rows = torch.from_numpy(features)[None], torch.tensor([tokens])
    with torch.no_grad():  # while it learns, texts are moved
        ops, _, _ = next(trained.unroll(*rows, lambda _: torch.zeros(0)))
    for kind, each in enumerate(ops._target):
        kept = cache.data[layer, kind, :, : len(tokens)]
        same = torch.allclose(each[0].transpose(0, 1), kept, atol=1e-4)
        assert same == (layer == 4)


def test_without_a_target_that_lends_it_is_refused() -> None:
    _, compiled = across(reach=3)
    grown = ContextUpdate(compiled.open(), np.zeros((1, 4 * GEOMETRY.width), np.float32), [1])
    with pytest.raises(RuntimeUnavailable, match="reads keys and values of its target, and was"):
        compiled.draft([grown], 1)
    with pytest.raises(InvalidOption, match="target_layers of a geometry must be 1 or more"):
        LongSpec(Geometry(8, 4, 2, 16, 12, 100.0, 1e-5, 17), cross=True)


def test_the_cpu_runtime_refuses_in_one_line_before_anything_is_drafted() -> None:
    with pytest.raises(RuntimeUnavailable, match="needs a runtime that lends them") as caught:
        runner("cpu", module(LongSpec(GEOMETRY, cross=True)))
    assert "\n" not in str(caught.value)


def logits_at(trained: DraftModule, features: Tensor, tokens: Tensor, offset: int) -> Tensor:
    """Teacher-forced logits of the first depth, with texts moved by an offset."""
    network = trained.network
    tensors = {**trained.named(), **trained.target_weights()}
    buffers = trained.get_buffer("embedding"), trained.get_buffer("head")
    ops = TorchOps(network.geometry, tensors, *buffers, network.reach, offset)
    with torch.no_grad():
        following = torch.cat([tokens[:, 1:], tokens[:, :1]], dim=1)
        return network.logits(ops, network.start(ops, features, following), 0)


def test_offsets_move_all_but_the_anchors() -> None:
    """Far enough in the text the window holds no anchor: cross-attention alone sees a distance."""
    features, tokens = texts(1, 20)
    lent = module(LongSpec(GEOMETRY, steps=2, reach=3, cross=True))
    alone = module(LongSpec(GEOMETRY, steps=2, reach=3))
    for trained, moves in ((lent, True), (alone, False)):
        still, moved = (logits_at(trained, features, tokens, each) for each in (0, 500))
        torch.testing.assert_close(moved[:, :4], still[:, :4])  # these rows see anchors alone
        same = torch.allclose(moved[:, 8:], still[:, 8:], atol=1e-4)
        assert same != moves


def test_training_moves_texts_and_judging_does_not() -> None:
    features, tokens = texts(1, 20)
    trained = module(LongSpec(GEOMETRY, steps=2, reach=3, cross=True, farthest=4096))
    learning = torch.stack(trained(features, tokens)).detach()
    again = torch.stack(trained(features, tokens)).detach()
    torch.testing.assert_close(learning, again)  # a function of the text
    with torch.no_grad():
        judged = torch.stack(trained(features, tokens))
    assert not torch.allclose(learning, judged, atol=1e-4)
    near = module(LongSpec(GEOMETRY, steps=2, reach=3, cross=True, farthest=0))
    with torch.no_grad():
        torch.testing.assert_close(torch.stack(near(features, tokens)), judged)
