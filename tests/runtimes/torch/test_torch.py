"""The PyTorch runtime in float64, where identities hold strictly."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch")

import tests.helpers.target_contract as contract  # noqa: E402
from tests.helpers.tiny_model import FAMILIES, named_tensors, tiny_config  # noqa: E402

from paceline.core import tree  # noqa: E402
from paceline.core.target import Rows  # noqa: E402
from paceline.errors import InvalidOption, OutOfMemory, RuntimeUnavailable  # noqa: E402
from paceline.runtimes.torch import target as module  # noqa: E402
from paceline.runtimes.torch.cache import reserve  # noqa: E402
from paceline.runtimes.torch.target import TorchTarget  # noqa: E402

STRICT = 1e-10


def tiny_target(family: Any = "llama", **options: Any) -> TorchTarget:
    config = tiny_config(family)
    return TorchTarget(config, named_tensors(config), **{"precision": "fp64", **options})


@pytest.fixture(scope="module")
def target() -> TorchTarget:
    return tiny_target()


@pytest.mark.parametrize("family", FAMILIES)
def test_nodes_equal_their_paths(family: Any) -> None:
    contract.check_nodes_equal_their_paths(tiny_target(family), STRICT, contract.DRAFT)


def test_chains_and_empty_drafts_are_trees_too(target: TorchTarget) -> None:
    for draft in (tree.chain([8, 9, 10]), tree.EMPTY):
        contract.check_nodes_equal_their_paths(target, STRICT, draft)


def test_siblings_see_nothing_of_each_other(target: TorchTarget) -> None:
    cache = contract.cache_with(target, contract.PROMPT)
    one = target.forward([Rows.draft(cache, [3], tree.chain([8]))])[0].logits[1]
    beside = tree.merge(tree.chain([50]), tree.chain([8]))
    contract.close(target.forward([Rows.draft(cache, [3], beside)])[0].logits[2], one, STRICT)


@pytest.mark.parametrize("path", [(), (0,), (0, 2, 6), (1, 3), contract.ACROSS])
def test_keep_equals_recomputation(target: TorchTarget, path: tuple[int, ...]) -> None:
    contract.check_keep(target, path, STRICT)


def test_a_whole_chain_is_kept(target: TorchTarget) -> None:
    cache = contract.cache_with(target, contract.PROMPT)
    target.forward([Rows.draft(cache, [3], tree.chain([8, 9, 10]))])
    target.keep(cache, 1, (0, 1, 2))
    (output,) = target.forward([Rows.draft(cache, [33])])
    expected = contract.logits_of(target, [*contract.PROMPT, 3, 8, 9, 10, 33])
    contract.close(output.logits[0], expected, STRICT)


def test_forward_alone_changes_nothing(target: TorchTarget) -> None:
    contract.check_forward_alone_changes_nothing(target, STRICT)


def test_truncate(target: TorchTarget) -> None:
    contract.check_truncate(target, STRICT)


def test_fork(target: TorchTarget) -> None:
    contract.check_fork(target, STRICT)


def test_features(target: TorchTarget) -> None:
    contract.check_features(target, STRICT)


def test_ragged_batches(target: TorchTarget) -> None:
    contract.check_ragged_batches(target, STRICT)


def test_most_probable_tokens(target: TorchTarget) -> None:
    contract.check_most_probable(target)


def test_prefill_in_chunks(target: TorchTarget) -> None:
    contract.check_long_prefill(target, STRICT)


def test_single_precision_is_close_to_double(target: TorchTarget) -> None:
    double = contract.logits_of(target, contract.PROMPT)
    single = contract.logits_of(tiny_target(precision="fp32"), contract.PROMPT)
    assert double.dtype == np.float64
    assert single.dtype == np.float32
    contract.close(single, double, 1e-4)
    half = contract.logits_of(tiny_target(precision="bf16"), contract.PROMPT)
    assert half.dtype == np.float32
    contract.close(half, double, 0.05 * float(np.abs(double).max()))


@pytest.mark.skipif(
    not torch.cuda.is_available(), reason="compares with a CUDA device, and torch finds none"
)
def test_cuda_agrees_with_cpu(target: TorchTarget) -> None:
    gpu = tiny_target(device="cuda")
    assert gpu.capabilities.device == "cuda"
    contract.check_nodes_equal_their_paths(gpu, STRICT, contract.DRAFT)
    contract.check_keep(gpu, contract.ACROSS, STRICT)
    found = contract.logits_of(gpu, contract.PROMPT)
    contract.close(found, contract.logits_of(target, contract.PROMPT), STRICT)


def test_a_negative_control_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    """Positions by row instead of by depth must be noticed."""
    monkeypatch.setattr(
        module, "row_positions", lambda rows: rows.cache.length + np.arange(len(rows))
    )
    with pytest.raises(AssertionError):
        contract.check_nodes_equal_their_paths(tiny_target(), STRICT, contract.DRAFT)


def test_capabilities() -> None:
    found = tiny_target(precision="bf16", device="cpu").capabilities
    assert (found.runtime, found.device, found.precision) == ("torch", "cpu", "bf16")
    assert (found.vocab_size, found.max_context, found.hidden_size) == (320, 256, 64)
    assert found.tree
    assert not found.bit_exact


@pytest.mark.parametrize(
    ("options", "error"),
    [
        ({"device": "tpu9"}, InvalidOption),
        ({"device": "meta"}, InvalidOption),
        ({"device": "cuda:99"}, RuntimeUnavailable),
        ({"precision": "int8"}, InvalidOption),
    ],
)
def test_bad_options_are_named(options: dict[str, str], error: type[Exception]) -> None:
    with pytest.raises(error, match="|".join(options.values())):
        tiny_target(**options)


def test_a_cache_too_large_for_memory_is_out_of_memory(target: TorchTarget) -> None:
    cache = target.open()
    with pytest.raises(OutOfMemory, match="no memory"):
        reserve(cache, 1 << 50)
