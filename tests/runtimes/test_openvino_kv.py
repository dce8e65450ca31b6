"""Key-value caches of every precision: the same function with drafts and without, and its memory.

Weights are fp32, so that what the cache rounds is all that is rounded.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.helpers import target_contract as contract
from tests.helpers import tiny_model as tiny
from tests.helpers.bf16 import (
    INT8_IS_EXACT,
    NOT_EXACT,
    where_int8_is_exact,
    where_there_are_pairs,
)
from tests.runtimes import tiny_openvino

pytest.importorskip("openvino")

from paceline.core import tree
from paceline.core.target import Pass, RuntimeOptions
from paceline.core.types import SamplingParams
from paceline.errors import InvalidOption, OutOfMemory
from paceline.measure.doctor import noise_floor
from paceline.native.library import has_bf16_dot
from paceline.registry.loading import load_model, make_engine
from paceline.runtimes.cpu.kv_formats import KV_FORMATS

TEXT = np.random.default_rng(2).integers(3, 300, 200).tolist()


PAIRS = ["bf16"] if has_bf16_dot() else []
PLUGIN = [name for name in KV_FORMATS if name != "bf16"]
WAYS = [
    *((each, "plugin") for each in PLUGIN),
    *((each, "paths") for each in ("fp32", "fp16")),
    where_there_are_pairs(("bf16", "paths")),
]


@pytest.fixture(scope="module", params=WAYS, ids=" ".join)
def target(request: pytest.FixtureRequest) -> Any:
    precision, attention = request.param
    return tiny_openvino.target("fp32", kv_precision=precision, attention=attention)


def after(target: Any, tokens: list[int]) -> Any:
    return contract.logits_of(target, tokens)


def test_drafts_change_no_bit(target: Any) -> None:
    assert target.capabilities.bit_exact
    assert noise_floor(target, TEXT) == {"chain": 0, "tree": 0}


def test_a_tree_over_a_block_border_changes_no_bit(target: Any) -> None:
    """Branches copy part of a block, rows of which later tokens must not depend on."""
    for length in (30, 31, 32, 33, 61):
        cache = contract.cache_with(target, TEXT[:length])
        target.forward([Pass(cache, TEXT[length : length + 1], contract.DRAFT)])
        target.keep(cache, 1, contract.ACROSS)
        path = contract.DRAFT.tokens[list(contract.ACROSS)].tolist()
        committed = [*TEXT[: length + 1], *path]
        [kept] = target.forward([Pass(cache, [7], tree.chain([8, 9]))])
        kept_logits = kept.logits.copy()
        for count, expected in enumerate(([7], [7, 8], [7, 8, 9])):
            assert np.array_equal(kept_logits[count], after(target, [*committed, *expected]))
        target.release(cache)


def test_the_contract(target: Any) -> None:
    contract.check_nodes_equal_their_paths(target, 0, contract.DRAFT)
    contract.check_keep(target, contract.ACROSS, 0)
    contract.check_truncate(target, 0)
    contract.check_fork(target, 0)
    contract.check_likeliest(target)
    contract.check_ragged_batches(target, 0)


@pytest.mark.parametrize("precision", PLUGIN)
def test_the_masked_layout_moves_rows_of_any_precision(precision: str) -> None:
    target = tiny_openvino.target("fp32", kv_precision=precision, layout="masked")
    assert not target.capabilities.bit_exact
    contract.check_keep(target, contract.ACROSS, 1e-3)


def test_what_a_cache_rounds_shows_in_its_memory_and_its_logits() -> None:
    """A negative control too: were the option ignored, all would be equal."""
    logits, taken = {}, {}
    for precision in (*PLUGIN, *PAIRS):
        target = tiny_openvino.target("fp32", kv_precision=precision)
        capabilities = target.capabilities
        assert capabilities.kv_precision == precision
        assert capabilities.kv_lossy == (precision == "u8")
        logits[precision] = after(target, TEXT)
        taken[precision] = capabilities.kv_bytes_per_token
    config = tiny_openvino.config()
    numbers = 2 * config.layers * config.kv_heads * config.head_dim
    rows = 2 * config.layers * config.kv_heads
    halves = dict.fromkeys(("fp16", *PAIRS), 2 * numbers)
    assert taken == {"fp32": 4 * numbers, **halves, "u8": numbers + 8 * rows}
    apart = {each: np.abs(logits[each] - logits["fp32"]).max() for each in logits}
    assert 0 < apart["fp16"] < 0.1
    assert 2 * apart["fp16"] < apart["u8"] < 3
    for pairs in PAIRS:
        assert apart["fp16"] < apart[pairs] < apart["u8"]


def test_pairs_are_for_our_own_operations() -> None:
    with pytest.raises(InvalidOption, match="use fp16 or fp32"):
        tiny_openvino.target("fp32", kv_precision="bf16", attention="plugin")


def test_an_unknown_precision_is_named() -> None:
    with pytest.raises(InvalidOption, match="'bf8' is unknown: use fp32, fp16, bf16, u8"):
        tiny_openvino.target(kv_precision="bf8")


@pytest.mark.parametrize(
    ("precision", "changes", "exact"),
    [
        where_int8_is_exact(("int8", {}, True)),
        ("int4", {}, False),
        ("int8", {"ffn_size": 96}, False),
    ],
)
def test_int8_is_exact_in_whole_groups_and_int4_is_not(
    precision: str, changes: dict[str, int], exact: bool
) -> None:
    target = tiny_openvino.target(precision, tiny_openvino.config(**changes))
    assert target.capabilities.bit_exact == exact
    if exact:
        assert noise_floor(target, TEXT) == {"chain": 0, "tree": 0}
    else:  # no promise, but not far from it
        assert max(noise_floor(target, TEXT).values()) < 1e-3


@pytest.mark.skipif(not INT8_IS_EXACT, reason=NOT_EXACT)
def test_a_full_cache_refuses_a_forward_and_stays_usable() -> None:
    """The last pass has no room for its branches: those of the others must not stay taken."""
    target = tiny_openvino.target(kv_tokens=320, attention="plugin")
    caches = [contract.cache_with(target, TEXT[:90]) for _ in range(2)]
    before = [target.forward([Pass(cache, [5])])[0].logits.copy() for cache in caches]
    star = tree.TokenTree  # five paths, each with a copy of a block
    wide = star(np.array([1, 2, 3, 4, 5, 6]), np.array([-1] * 6))
    with pytest.raises(OutOfMemory, match="full"):
        target.forward([Pass(cache, [5], wide) for cache in caches])
    [alone] = target.forward([Pass(caches[0], [5], star(wide.tokens[:4], wide.parents[:4]))])
    assert np.array_equal(alone.logits[0], before[0][0])
    target.release(caches[0])
    [other] = target.forward([Pass(caches[1], [5], wide)])
    assert np.array_equal(other.logits[0], before[1][0])


def test_a_cache_larger_than_the_address_space_is_refused() -> None:
    with pytest.raises(OutOfMemory, match="kv_tokens"):
        tiny_openvino.target(kv_tokens=2**50)


@pytest.mark.parametrize("precision", [*PLUGIN, where_there_are_pairs("bf16")])
def test_texts_are_the_same_with_drafts_and_in_batches(
    precision: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """At a temperature, where a last bit of a logit would soon show."""
    monkeypatch.setenv("PACELINE_CACHE", str(tmp_path / "cache"))
    model = tiny.save_directory(tmp_path / "model", tiny_openvino.config())
    options = RuntimeOptions(kv_precision=precision)
    loaded = load_model(str(model), runtime="openvino", options=options)
    prompts = [[5, 9, 5, 9, 5], TEXT[:40], [*TEXT[:40], 8], [7] * 31]
    params = SamplingParams(temperature=0.7, seed=3, max_new_tokens=40, ignore_eos=True)
    plain = make_engine(loaded, drafter="none")
    alone = [plain.generate(prompt, params).token_ids for prompt in prompts]
    drafting = make_engine(loaded, drafter="recycling", nodes=6, depth=3)
    requests = [drafting.add(prompt, params) for prompt in prompts]
    done = {}
    while len(done) < len(requests):
        for event in drafting.step():
            if event.completion is not None:
                done[event.request] = event.completion
    assert [done[request].token_ids for request in requests] == alone
    assert sum(each.stats.accepted_tokens for each in done.values()) > 0
