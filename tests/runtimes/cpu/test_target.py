"""The CPU target at every precision: the same function with drafts and without, and its memory."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.helpers import target_contract as contract
from tests.helpers import tiny_model as tiny
from tests.runtimes import tiny_cpu

from paceline.core import tree
from paceline.core.target import Rows, RuntimeOptions
from paceline.core.types import SamplingParams, TokenTree
from paceline.errors import InvalidOption, OutOfMemory
from paceline.lab.measure.doctor import noise_floor
from paceline.models.source import DirectorySource
from paceline.registry.loading import load_model, make_engine
from paceline.runtimes.cpu import target as cpu
from paceline.runtimes.cpu.matrices import PRECISIONS
from paceline.runtimes.cpu.target import CpuTarget
from paceline.runtimes.kv_cache import BLOCK

TEXT = np.random.default_rng(2).integers(3, 300, 200).tolist()
WAYS = [(precision, kv) for precision in PRECISIONS for kv in ("fp16", "fp32")]


@pytest.fixture(scope="module", params=WAYS, ids=" ".join)
def target(request: pytest.FixtureRequest) -> Any:
    precision, kv = request.param
    return tiny_cpu.target(precision, kv_precision=kv)


def after(target: Any, tokens: list[int]) -> Any:
    return contract.logits_of(target, tokens)


def test_drafts_change_no_bit(target: Any) -> None:
    assert target.capabilities.bit_exact
    assert noise_floor(target, TEXT) == {"chain": 0, "tree": 0}


def test_a_tree_over_a_block_border_changes_no_bit(target: Any) -> None:
    for length in (30, 31, 32, 33, 61):
        cache = contract.cache_with(target, TEXT[:length])
        target.forward([Rows.draft(cache, TEXT[length : length + 1], contract.DRAFT)])
        target.keep(cache, 1, contract.ACROSS)
        path = contract.DRAFT.tokens[list(contract.ACROSS)].tolist()
        committed = [*TEXT[: length + 1], *path]
        [kept] = target.forward([Rows.draft(cache, [7], tree.chain([8, 9]))])
        kept_logits = kept.logits.copy()
        for count, expected in enumerate(([7], [7, 8], [7, 8, 9])):
            assert np.array_equal(kept_logits[count], after(target, [*committed, *expected]))
        target.release(cache)


def test_the_contract(target: Any) -> None:
    contract.check_nodes_equal_their_paths(target, 0, contract.DRAFT)
    contract.check_keep(target, contract.ACROSS, 0)
    contract.check_truncate(target, 0)
    contract.check_fork(target, 0)
    contract.check_most_probable(target)
    contract.check_ragged_batches(target, 0)


def test_features_are_the_same_wherever_they_are_made() -> None:
    contract.check_features(tiny_cpu.target("int8", tiny_cpu.config(layers=4)), 0)


def test_threads_change_no_bit() -> None:
    shape = tiny_cpu.config()
    alone, several = (tiny_cpu.target("int8", shape, threads=count) for count in (1, 2))
    assert np.array_equal(after(alone, TEXT[:70]), after(several, TEXT[:70]))


def test_what_a_cache_rounds_shows_in_its_memory_and_its_logits() -> None:
    """A negative control too: were the option ignored, all would be equal."""
    fine, coarse = (tiny_cpu.target("fp32", kv_precision=kv) for kv in ("fp32", "fp16"))
    shape = tiny_cpu.config()
    numbers = 2 * shape.layers * shape.kv_heads * shape.head_dim
    for target, name, size in ((fine, "fp32", 4), (coarse, "fp16", 2)):
        assert target.capabilities.kv_precision == name
        assert target.capabilities.kv_bytes_per_token == size * numbers
    assert 0 < np.abs(after(coarse, TEXT) - after(fine, TEXT)).max() < 0.1


def test_precisions_are_nearer_to_the_weights_the_more_bits_they_have() -> None:
    exact = after(tiny_cpu.target("fp32"), TEXT)
    off = {
        precision: np.abs(
            after(tiny_cpu.target(precision, kv_precision="fp32"), TEXT) - exact
        ).mean()
        for precision in ("file", "int8", "int4")
    }
    assert off["file"] == 0  # of a file in float32
    assert 0 < 4 * off["int8"] < off["int4"]


@pytest.mark.parametrize("precision", PRECISIONS)
def test_the_cache_is_fp32_where_weights_are_asked_to_be(precision: str) -> None:
    expected = "fp32" if precision == "fp32" else "fp16"
    assert tiny_cpu.target(precision).capabilities.kv_precision == expected


def test_files_keep_their_precision_and_directories_are_int8(tmp_path: Path) -> None:
    shape = tiny_cpu.config()
    tiny.save_gguf(tmp_path / "tiny.gguf", shape)
    tiny.save_directory(tmp_path / "tiny", shape)
    found = [load_model(str(tmp_path / name), runtime="cpu") for name in ("tiny.gguf", "tiny")]
    assert [each.target.capabilities.precision for each in found] == ["file", "int8"]


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"precision": "int3"}, "'int3' is unknown: use file, int8, int4, fp32"),
        ({"kv_precision": "u8"}, "precision 'u8' is unknown: use fp16, fp32"),
        ({"kv_tokens": 2 * BLOCK - 1}, "kv_tokens must be"),
        ({"prefix_tokens": -1}, "prefix_tokens 0 or more"),
    ],
)
def test_what_cannot_be_is_named(options: dict[str, Any], says: str) -> None:
    with pytest.raises(InvalidOption, match=says):
        tiny_cpu.target(**options)


def test_another_device_is_refused(tmp_path: Path) -> None:
    source = DirectorySource(tiny.save_directory(tmp_path, tiny_cpu.config()))
    with pytest.raises(InvalidOption, match="runs on cpu, not 'cuda': use --runtime torch"):
        CpuTarget.load(source, RuntimeOptions(device="cuda"))


def test_a_cache_holds_whole_blocks() -> None:
    assert tiny_cpu.target(kv_tokens=3 * BLOCK + 1).capabilities.max_context == 3 * BLOCK


def test_a_full_cache_refuses_a_forward_and_stays_usable() -> None:
    """The last pass has no room for its draft: the others can go on."""
    target = tiny_cpu.target(kv_tokens=256)
    caches = [contract.cache_with(target, TEXT[:90]) for _ in range(2)]
    before = [target.forward([Rows.draft(cache, [5])])[0].logits.copy() for cache in caches]
    wide = TokenTree(np.arange(40), np.full(40, -1))
    with pytest.raises(OutOfMemory, match="full"):
        target.forward([Rows.draft(cache, [5], wide) for cache in caches])
    [alone] = target.forward([Rows.draft(caches[0], [5], wide)])
    assert np.array_equal(alone.logits[0], before[0][0])
    target.release(caches[0])
    [other] = target.forward([Rows.draft(caches[1], [5], wide)])
    assert np.array_equal(other.logits[0], before[1][0])


def test_a_cache_larger_than_the_address_space_is_refused() -> None:
    with pytest.raises(OutOfMemory, match="kv_tokens"):
        tiny_cpu.target(kv_tokens=2**50)


def test_without_native_kernels_it_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cpu, "library", lambda: None)
    with pytest.raises(cpu.RuntimeUnavailable, match=r"install g\+\+ or pip install ziglang"):
        tiny_cpu.target()


@pytest.mark.parametrize("kv", ["fp16", "fp32"])
def test_texts_are_the_same_with_drafts_and_in_batches(
    kv: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """At a temperature, where a last bit of a logit would soon show."""
    monkeypatch.setenv("PACELINE_CACHE", str(tmp_path / "cache"))
    model = tiny.save_directory(tmp_path / "model", tiny_cpu.config())
    loaded = load_model(str(model), runtime="cpu", kv_precision=kv)
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
