"""Hybrid tree attention: a prefix without a mask and a tree under one are one softmax."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from tests.helpers import tiny_model as tiny
from torch import Tensor

from paceline.core import tree as trees
from paceline.core.target import Rows
from paceline.core.types import TokenTree
from paceline.runtimes.torch import hybrid as module
from paceline.runtimes.torch import target as runtime
from paceline.runtimes.torch.hybrid import Part, hybrid, masked, merge
from paceline.runtimes.torch.target import TorchTarget

WIDTH, SCALE = 16, 0.3


def random_tree(rows: int, seed: int) -> TokenTree:
    rng = np.random.default_rng(seed)
    parents = np.array([int(rng.integers(-1, node)) for node in range(rows)], dtype=np.int64)
    return TokenTree(np.arange(rows, dtype=np.int64), parents, source="test")


def case(past: int, rows: int, heads: int = 6, kv_heads: int = 2, seed: int = 0) -> list[Tensor]:
    """Queries, all keys, all values, and what a random tree's rows see of one another."""
    generator = torch.Generator().manual_seed(seed)
    queries = torch.randn(rows, heads, WIDTH, generator=generator).double()
    keys, values = torch.randn(2, kv_heads, past + rows, WIDTH, generator=generator).double()
    return [
        3 * queries,
        keys,
        values,
        torch.from_numpy(trees.ancestor_mask(random_tree(rows, seed))),
    ]


def whole(queries: Tensor, keys: Tensor, values: Tensor, near: Tensor) -> Tensor:
    """One softmax over all keys, under one mask."""
    rows, past = len(near), keys.shape[1] - len(near)
    mask = torch.cat([torch.ones(rows, past, dtype=torch.bool), near], dim=1)
    group = queries.shape[1] // keys.shape[0]
    scores = torch.einsum("rhd,hkd->hrk", queries, keys.repeat_interleave(group, 0)) * SCALE
    weights = scores.masked_fill(~mask, -torch.inf).softmax(-1)
    return torch.einsum("hrk,hkd->rhd", weights, values.repeat_interleave(group, 0))


def halves(queries: Tensor, keys: Tensor, values: Tensor, near: Tensor) -> Tensor:
    past = keys.shape[1] - len(near)
    prefix, new = (keys[:, :past], values[:, :past]), (keys[:, past:], values[:, past:])
    return hybrid(queries, prefix, new, near, SCALE)


@pytest.mark.parametrize("past", [1, 7, 300, 16_384])
@pytest.mark.parametrize("rows", [1, 2, 30])
def test_two_parts_are_one_softmax(past: int, rows: int) -> None:
    parts = case(past, rows)
    torch.testing.assert_close(halves(*parts), whole(*parts), rtol=1e-12, atol=1e-12)
    single = [each.float() if each.is_floating_point() else each for each in parts]
    torch.testing.assert_close(halves(*single), whole(*single), rtol=1e-5, atol=1e-5)


def test_parts_that_differ_by_far_do_not_overflow() -> None:
    parts = case(40, 5)
    parts[0] = parts[0] * 1e4
    torch.testing.assert_close(halves(*parts), whole(*parts), rtol=1e-9, atol=1e-9)


def test_parts_without_a_flash_kernel_are_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "unmasked", lambda q, k, v, s: masked(q, k, v, None, s))
    parts = case(50, 9)
    torch.testing.assert_close(halves(*parts), whole(*parts), rtol=1e-12, atol=1e-12)


def test_queries_of_autocast_meet_keys_as_they_were_cached() -> None:
    queries, keys, values, near = case(50, 9)
    rounded = queries.bfloat16()
    found = halves(rounded, keys.float(), values.float(), near)
    assert found.dtype == torch.bfloat16
    expected = whole(rounded.double(), keys, values, near)
    torch.testing.assert_close(found.double(), expected, rtol=0.01, atol=1e-5)


@pytest.mark.parametrize("wrong", ["half of each", "the other way round"])
def test_a_wrong_merge_is_caught(wrong: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Negative control."""

    def half(a: Part, b: Part) -> Part:
        return Part((a.out + b.out) / 2, a.lse)

    def swapped(a: Part, b: Part) -> Part:
        return merge(Part(a.out, b.lse), Part(b.out, a.lse))

    monkeypatch.setattr(module, "merge", half if wrong == "half of each" else swapped)
    parts = case(50, 9)
    assert not torch.allclose(halves(*parts), whole(*parts), atol=1e-2)


def test_a_target_verifies_trees_by_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """With the logits of one masked softmax, and no mask over what is cached."""
    config = tiny.tiny_config(layers=3)
    target = TorchTarget(config, tiny.named_tensors(config), "cpu", "fp64")
    cache = target.open()
    target.prefill(cache, [*range(3, 60)])
    passes = [Rows.draft(cache, [7], random_tree(12, 1))]
    sizes: list[Any] = []

    def watched(*parts: Any) -> Tensor:
        sizes.append(parts[3].shape)
        return hybrid(*parts)

    monkeypatch.setattr("paceline.runtimes.torch.cache.hybrid", watched)
    target.forward(passes)
    assert not sizes  # of so few tokens
    monkeypatch.setattr(runtime, "LONG", 57)
    [found] = target.forward(passes)
    assert sizes == [(13, 13)] * config.layers

    def one_mask(rows: Rows, window: int) -> Any:
        return runtime.row_mask(rows, window)

    monkeypatch.setattr(runtime, "_mask", one_mask)
    [expected] = target.forward(passes)
    assert len(sizes) == config.layers
    np.testing.assert_allclose(found.logits, expected.logits, rtol=1e-10, atol=1e-10)
