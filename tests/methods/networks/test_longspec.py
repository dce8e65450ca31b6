"""LongSpec: a window that is exact in memory that does not grow, and a target that lends rows."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from tests.drafters.network.test_trained import (
    CONFIG,
    GREEDY,
    TARGETS,
    context,
    generate,
    random_weights,
    saved,
)
from tests.helpers.tiny_model import named_tensors, tiny_config
from tests.networks.cases import TINY, context_rows, module, texts
from tests.networks.runners import IDS, RUNTIMES, Reference, runner
from torch import Tensor

from paceline.drafters.base import NoDrafter
from paceline.errors import InvalidOption, RuntimeUnavailable
from paceline.lab.training.module import DraftModule, share_target_weights
from paceline.methods.networks.longspec import LongSpec, LongSpecDrafter
from paceline.models.families.base import heads_of
from paceline.models.ops import KV
from paceline.networks.base import Network, drafter_config
from paceline.networks.runner import Branch, ContextUpdate
from paceline.networks.torch_ops import NetworkTensors, TextAttention, TorchOps
from paceline.runtimes.kv_cache import BLOCK, CHUNK, BlockPool, PagedCache
from paceline.runtimes.reference.ops import ReferenceOps
from paceline.runtimes.torch.cache import TorchCache
from paceline.runtimes.torch.target import TorchTarget

Lent = TorchCache | PagedCache


class Lender:
    """A target's cache of a text: right in the layer that is read, far off elsewhere."""

    def __init__(self, runtime: str, trained: DraftModule, room: int = 16) -> None:
        shape = TINY
        self._trained, self.pool = trained, None
        if runtime == "cpu":
            parts = shape.layers, shape.kv_heads, shape.head_dim, room
            self.pool = BlockPool(*parts, dtype=np.float32)
            self.pool.slabs[0].memory[:] = 1e3

    def cache(self, features: Tensor, rows: int) -> Lent:
        """The first rows of the text with these features."""
        keys, values = (each[0].float() for each in self.rows(features, rows))
        if self.pool is None:
            shape = TINY.layers, 2, TINY.kv_heads, rows + 3, TINY.head_dim
            data = torch.full(shape, 1e3)
            data[-1, :, :, :rows] = torch.stack([keys, values]).transpose(1, 2)
            return TorchCache(data, rows)
        cache = PagedCache(self.pool)
        cache.reserve(rows)
        cache.length = rows
        for at in range(rows):
            place = cache.blocks[at // BLOCK], slice(None), slice(None), at % BLOCK
            self.pool.slabs[0]._keys[-1][place] = keys[at].numpy()
            place = cache.blocks[at // BLOCK], slice(None), at % BLOCK
            self.pool.slabs[0]._values[-1][place] = values[at].numpy()
        return cache

    def rows(self, features: Tensor, rows: int) -> tuple[Tensor, Tensor]:
        """Keys and values, `[1, rows, kv_heads, head_dim]`."""
        trained = self._trained
        tensors = {**trained.named(), **trained.target_weights()}
        buffers = trained.get_buffer("embedding"), trained.get_buffer("head")
        ops = TorchOps(NetworkTensors(tensors, *buffers), TINY.norm_eps, TextAttention())
        with torch.no_grad():
            return kept(ops, trained.network, features[None, :rows])


def kept(ops: TorchOps, network: Network, features: Tensor) -> tuple[Tensor, Tensor]:
    """Keys and values of the target, `[texts, rows, kv_heads, head_dim]`, which `ops` get too."""
    plain = TorchOps(ops._weights, TINY.norm_eps, TextAttention())
    ops.attend(-1, network.target_rows(plain, features), heads_of(network.config, -1))
    keys, values = ops.attention._context[-1]
    return keys.transpose(1, 2), values.transpose(1, 2)


def across(
    runtime: str, reach: int, steps: int = 3, max_context: int = 300
) -> tuple[DraftModule, Any, Lender]:
    trained = module(LongSpec(TINY, steps=steps, reach=reach))
    lender = Lender(runtime, trained, room=64)
    return trained, runner(runtime, trained, max_context, lent=lender.pool), lender


every_runtime = pytest.mark.parametrize("runtime", RUNTIMES)


@every_runtime
def test_chains_and_branches_over_lent_rows_are_those_of_the_plain_evaluation(
    runtime: str,
) -> None:
    """A ragged batch, draft after draft, with a window that rows have left."""
    trained, compiled, lender = across(runtime, reach=3)
    network, (features, tokens) = trained.network, texts(2, 20)
    caches, ends = [compiled.open() for _ in range(2)], [0, 0]
    for gained in ((4, 9), (1, 3), (5, 1)):
        grown, whole = [], []
        for i, count in enumerate(gained):
            read, behind = context_rows(network, features[i], tokens[i], ends[i], ends[i] + count)
            ends[i] += count
            lent = lender.cache(features[i], ends[i])
            grown.append(ContextUpdate(caches[i], read.astype(np.float32), behind, lent))
            whole.append(context_rows(network, features[i], tokens[i], 0, ends[i]))
        known: list[list[Branch]] = [[root] for root in compiled.start(grown)]
        for _ in range(network.steps - 1):
            asked = [(each[-1], [int(IDS[2])]) for each in known]
            for branches, branch in zip(known, compiled.advance(asked), strict=True):
                branches.append(branch)
        for branches, rows in zip(known, whole, strict=True):
            wanted = Reference(trained).draft(*rows, [int(IDS[2])] * 3)
            found = np.concatenate([branch.logits for branch in branches])
            np.testing.assert_allclose(found, wanted, atol=1e-3)


@every_runtime
@pytest.mark.parametrize("cross", [False, True])
@pytest.mark.parametrize("reach", [1, 3, 40])
def test_a_window_is_exact_and_its_cache_does_not_grow(
    reach: int, cross: bool, runtime: str
) -> None:
    """Positions go on while rows leave, and what has left is what no row sees."""
    trained = module(LongSpec(TINY, steps=3, reach=reach, cross=cross))
    lender = Lender(runtime, trained, room=128)
    network = trained.network
    compiled: Any = runner(runtime, trained, 300, lent=lender.pool)
    features, tokens = texts(1, 230)
    cache, drafter = compiled.open(), Reference(trained)
    begin = 0
    for gained in (70, 1, 3, 60, 30, 1, 40, 2):
        read, behind = context_rows(network, features[0], tokens[0], begin, begin + gained)
        begin += gained
        lent = lender.cache(features[0], begin) if cross else None
        grown = ContextUpdate(cache, read.astype(np.float32), behind, lent)
        (chain,) = compiled.draft([grown], network.depth)
        logits = drafter.draft(read, behind, chain.tokens)
        assert chain.tokens == IDS[logits.argmax(-1)].tolist()
        distribution = np.exp(logits - logits.max(-1, keepdims=True))
        sure = (distribution / distribution.sum(-1, keepdims=True)).max(-1)
        np.testing.assert_allclose(chain.chances, sure, atol=1e-4)
        length, most = (
            (cache.paged.length, reach + CHUNK)
            if runtime == "cpu"
            else (cache.rows.length, 2 * reach)
        )
        assert length <= most + gained
        assert cache.left + length == begin


def test_what_is_lent_is_not_copied() -> None:
    trained, compiled, lender = across("torch", reach=3)
    features, tokens = texts(1, 9)
    lent: Any = lender.cache(features[0], 6)
    read, behind = context_rows(trained.network, features[0], tokens[0], 0, 6)
    cache = compiled.open()
    compiled.draft([ContextUpdate(cache, read.astype(np.float32), behind, lent)], 2)
    assert cache.target is not None
    assert cache.target.data_ptr() == lent.data.data_ptr()
    assert cache.target.shape[3] == 6
    compiled.release(cache)
    assert cache.target is None


@pytest.mark.parametrize("layer", [4, 5, 6])
def test_rows_made_in_training_are_those_that_the_target_keeps(layer: int) -> None:
    """Of the last layer, and of no other."""
    config = tiny_config(layers=7)
    tensors = named_tensors(config)
    target = TorchTarget(config, tensors)
    shape, cache = drafter_config(config), target.open()
    tokens = [5, 9, 60, 9, 3, 22]
    features = target.prefill(cache, tokens, True)
    assert features is not None
    network = LongSpec(shape)
    weights = share_target_weights(network, config, tensors)  # type: ignore[arg-type]  # a dict has what it needs
    assert {"layers.5.down", "layers.6.attention_norm", "layers.6.q"} < weights.keys()
    assert "layers.6.gate" not in weights
    generator, table = torch.Generator(), torch.zeros(config.vocab_size, config.hidden_size)
    lent = {name: torch.from_numpy(each) for name, each in weights.items()}
    trained = DraftModule(network, table, table, generator, lent)
    rows = torch.from_numpy(features)[None], torch.tensor([tokens])
    with torch.no_grad():  # while it learns, texts are moved
        ops, _, _ = next(trained.unroll(*rows, lambda _: torch.zeros(0)))
    for kind, each in enumerate(ops.attention._context[-1]):
        stored = cache.data[layer, kind, :, : len(tokens)].cpu()
        same = torch.allclose(each[0], stored, atol=1e-4)
        assert same == (layer == 6)


class Blind(ReferenceOps):
    """Negative control: no cross-attention."""

    def attend(self, kv: Any, *given: Any) -> Any:
        out = super().attend(kv, *given)
        return 0 * out if isinstance(kv, KV) else out


class Shifted(ReferenceOps):
    """Negative control: queries stand one place further on."""

    def _turned(self, x: Any, rotary: Any, norm: Any, positions: Any) -> Any:
        asked = x.shape[1] == TINY.heads and not self._stored
        return super()._turned(x, rotary, norm, positions + asked)

    def attend(self, kv: Any, *given: Any) -> Any:
        self._stored = not isinstance(kv, KV)
        return super().attend(kv, *given)


class Short(ReferenceOps):
    """Negative control: the newest row of the target is not seen."""

    def attend(self, kv: Any, *given: Any) -> Any:
        short = isinstance(kv, KV)
        self._sights.context -= short
        out = super().attend(kv, *given)
        self._sights.context += short
        return out


@every_runtime
@pytest.mark.parametrize(
    ("wrong", "reach"), [(ReferenceOps, 3), (ReferenceOps, 4), (Blind, 3), (Shifted, 3), (Short, 3)]
)
def test_another_architecture_is_told_apart(
    runtime: str, wrong: type[ReferenceOps], reach: int
) -> None:
    """Without cross-attention, by a window, by an offset, by a row: all draft something else."""
    trained, compiled, lender = across(runtime, reach=3)
    features, tokens = texts(1, 20)
    read, behind = context_rows(trained.network, features[0], tokens[0], 0, 12)
    lent = lender.cache(features[0], 12)
    grown = ContextUpdate(compiled.open(), read.astype(np.float32), behind, lent)
    [root] = compiled.start([grown])
    drafter = Reference(trained, wrong)
    trained.network.config = replace(TINY, windows=(reach,))
    expected = drafter.draft(read, behind, [int(IDS[2])] * 3)[0]
    same = np.allclose(root.logits, expected, atol=1e-3)
    assert same == (wrong is ReferenceOps and reach == 3)


@every_runtime
@pytest.mark.parametrize("growth", ["", "expand-rerank-3"])
def test_texts_over_a_lent_cache_are_those_of_plain_decoding(
    runtime: str, growth: str, tmp_path: Path
) -> None:
    target = TARGETS[runtime]()
    network = LongSpec(drafter_config(CONFIG), steps=3, reach=8)
    path = saved(tmp_path / "weights", random_weights(network))
    options = {"weights": str(path)} | ({"growth": growth} if growth else {})
    drafter = LongSpecDrafter.create(context(target, **options))
    found = generate(target, drafter, GREEDY)
    expected = generate(target, NoDrafter(), GREEDY)
    assert [each.tokens for each in found] == [each.tokens for each in expected]
    assert sum(each.stats.drafted_tokens for each in found) > 0


def test_runtimes_read_their_own_caches_alike() -> None:
    """And what is read is the sequence's own, not another's."""
    network = LongSpec(drafter_config(CONFIG), steps=3, reach=8)
    trained, rows = random_weights(network), {}
    text, other = [*range(5, 60)], [*range(60, 115)]
    for runtime in RUNTIMES:
        target = TARGETS[runtime]()
        compiled = target.run_network(trained)
        cache, wrong = target.open(), target.open()
        features = target.prefill(cache, text, True)
        target.prefill(wrong, other)
        for lent in (cache, wrong):
            update = ContextUpdate(compiled.open(), features, [*text[1:], 7], lent)
            [root] = compiled.start([update])
            [next_] = compiled.advance([(root, [8])])
            rows[runtime, lent is cache] = np.stack([root.logits[0], next_.logits[0]])
    np.testing.assert_allclose(rows["cpu", True], rows["torch", True], atol=1e-3)
    assert np.abs(rows["cpu", True] - rows["cpu", False]).max() > 1e-2


@every_runtime
def test_a_context_of_16k_tokens_takes_no_more_memory(runtime: str) -> None:
    """All but the window has left, and the draft is that of the end of the text alone."""
    reach, length = 512, 16_384
    trained = module(LongSpec(TINY, steps=3, reach=reach, cross=False))
    compiled: Any = runner(runtime, trained, length + 100, kv_tokens=2048)
    features, tokens = texts(1, length + 1)
    cache, begin = compiled.open(), 0
    held = []
    while begin < length:
        end = begin + 1024
        read, behind = context_rows(trained.network, features[0], tokens[0], begin, end)
        [root] = compiled.start([ContextUpdate(cache, read.astype(np.float32), behind)])
        rows = cache.paged.length if runtime == "cpu" else cache.rows.length
        held.append(rows)
        begin = end
    assert max(held) <= reach + CHUNK + 1024
    assert cache.left + held[-1] == length
    end = context_rows(trained.network, features[0], tokens[0], length - reach, length)
    [short] = compiled.start([ContextUpdate(compiled.open(), end[0].astype(np.float32), end[1])])
    np.testing.assert_allclose(root.logits, short.logits, atol=1e-2)


@every_runtime
def test_without_a_target_that_lends_it_is_refused(runtime: str) -> None:
    _, compiled, _ = across(runtime, reach=3)
    grown = ContextUpdate(compiled.open(), np.zeros((1, 4 * TINY.hidden_size), np.float32), [1])
    with pytest.raises(RuntimeUnavailable, match="reads keys and values of its target, and was"):
        compiled.draft([grown], 1)
    with pytest.raises(InvalidOption, match="target_layers of a geometry must be 1 or more"):
        LongSpec(replace(TINY, layers=0))
    with pytest.raises(RuntimeUnavailable, match="reads keys and values of a target beside it"):
        runner("cpu", module(LongSpec(TINY)))


def logits_at(trained: DraftModule, features: Tensor, tokens: Tensor, offset: int) -> Tensor:
    """Teacher-forced logits of the first depth, with texts moved by an offset."""
    network = trained.network
    tensors = {**trained.named(), **trained.target_weights()}
    buffers = trained.get_buffer("embedding"), trained.get_buffer("head")
    weights = NetworkTensors(tensors, *buffers)
    ops = TorchOps(weights, network.config.norm_eps, TextAttention(offset))
    with torch.no_grad():
        following = torch.cat([tokens[:, 1:], tokens[:, :1]], dim=1)
        if network.reads_target:
            kept(ops, network, features)
        return network.logits(ops, network.start(ops, features, following), 0)


def test_offsets_move_all_but_the_anchors() -> None:
    """Far enough in the text the window holds no anchor: cross-attention alone sees a distance."""
    features, tokens = texts(1, 20)
    lent = module(LongSpec(TINY, steps=2, reach=3))
    alone = module(LongSpec(TINY, steps=2, reach=3, cross=False))
    for trained, moves in ((lent, True), (alone, False)):
        still, moved = (logits_at(trained, features, tokens, each) for each in (0, 500))
        torch.testing.assert_close(moved[:, :4], still[:, :4])  # these rows see anchors alone
        same = torch.allclose(moved[:, 8:], still[:, 8:], atol=1e-4)
        assert same != moves


def test_training_moves_texts_and_judging_does_not() -> None:
    features, tokens = texts(1, 20)
    trained = module(LongSpec(TINY, steps=2, reach=3, farthest=4096))
    learning = torch.stack(trained(features, tokens)).detach()
    again = torch.stack(trained(features, tokens)).detach()
    torch.testing.assert_close(learning, again)  # a function of the text
    with torch.no_grad():
        judged = torch.stack(trained(features, tokens))
    assert not torch.allclose(learning, judged, atol=1e-4)
    near = module(LongSpec(TINY, steps=2, reach=3, farthest=0))
    with torch.no_grad():
        torch.testing.assert_close(torch.stack(near(features, tokens)), judged)


def test_every_text_has_an_offset_of_its_own() -> None:
    features, tokens = texts(2, 20)
    trained = module(LongSpec(TINY, steps=2, reach=3, farthest=4096))
    both = torch.stack(trained(features, tokens)).detach()
    for text in range(2):
        alone = torch.stack(trained(features[text : text + 1], tokens[text : text + 1])).detach()
        torch.testing.assert_close(both[:, text], alone[:, 0])
    assert tokens[0].sum() != tokens[1].sum()
