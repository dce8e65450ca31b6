"""Attention over ranks: in the order of keys the bits of the engine's own, else within a bound."""

from __future__ import annotations

from functools import cache
from typing import Any

import numpy as np
import pytest
from tests.native.test_attention import Sizes, committed, layer, random_rows

from paceline.core.target import Rows
from paceline.errors import InvalidOption
from paceline.methods.ring import Partial, Ring, Sent, chunks_of
from paceline.runtimes.cpu.forward import ForwardBatch
from paceline.runtimes.kv_cache import PagedCache
from paceline.runtimes.reference.arithmetic import CHUNK, attention

SIZES = Sizes(heads=2, kv_heads=1, width=16, turned=0)
WAYS: list[Sent] = ["keys", "queries"]


@cache
def of_engine(count: int, kept: Any) -> tuple[Any, Any]:
    """Queries, keys and values of a layer, and what the kernel makes of them."""
    made = layer(SIZES, kept)
    rows = random_rows(SIZES, count)
    batch = ForwardBatch()
    batch.add(Rows.draft(PagedCache(made.pool), [0] * count))
    expected = made.run(batch, rows).reshape(count, 2, 16)
    stored = committed(made, rows).read(0)
    queries = rows[:, :32].reshape(count, 2, 16) * np.float32(SIZES.shape.scale)
    return (queries, stored[:, 0], stored[:, 1]), expected


def random_layer(count: int, heads: int = 2, kv_heads: int = 1, width: int = 16) -> list[Any]:
    rng = np.random.default_rng(count)
    shapes = [(count, each, width) for each in (heads, kv_heads, kv_heads)]
    return [rng.standard_normal(shape).astype(np.float32) for shape in shapes]


def all_see_all(queries: Any, keys: Any, values: Any) -> Any:
    places = np.arange(-(-len(keys) // CHUNK) * CHUNK)
    paths = np.broadcast_to(np.where(places < len(keys), places, -1), (len(queries), len(places)))
    groups = queries.shape[1] // keys.shape[1]
    return attention(queries, keys.repeat(groups, 1), values.repeat(groups, 1), paths)


@pytest.mark.parametrize("send", WAYS)
@pytest.mark.parametrize(
    ("ranks", "zigzag", "kept"),
    [
        (1, True, "fp32"),
        (2, True, "fp16"),
        (3, True, "fp32"),
        (4, False, "fp32"),
        (6, False, "fp16"),
    ],
)
def test_in_the_order_of_keys_it_is_the_engine(
    send: Sent, ranks: int, zigzag: bool, kept: str
) -> None:
    """Whatever the speeds of links."""
    given, expected = of_engine(700, kept)
    ring = Ring(*given, ranks, zigzag=zigzag)
    for seed in range(2):
        assert np.array_equal(ring.run(send, ordered=True, seed=seed), expected)


@pytest.mark.parametrize("send", WAYS)
def test_so_it_is_where_all_see_all(send: Sent) -> None:
    given = random_layer(520)
    found = Ring(*given, 5, causal=False, zigzag=False).run(send, ordered=True, seed=1)
    assert np.array_equal(found, all_see_all(*given))


def bound(given: Any, ranks: int) -> float:
    """Of a merge's rounding: of its weights, whose logarithms are rounded, and of its sums."""
    queries, keys, values = given
    scores = np.einsum("qhd,kd->qhk", queries.astype(np.float64), keys[:, 0].astype(np.float64))
    highest = np.abs(scores).max() + np.log(len(keys))
    return float(2 * ranks * (4 + highest) * np.finfo(np.float32).eps * np.abs(values).max())


@pytest.mark.parametrize("send", WAYS)
def test_as_results_come_it_is_within_a_bound(send: Sent) -> None:
    """And its bits are those of who came first, which no seed of a text names."""
    given, expected = of_engine(700, "fp32")
    found = [Ring(*given, 3).run(send, ordered=False, seed=seed) for seed in range(3)]
    assert all(np.abs(each - expected).max() < bound(given, 3) for each in found)
    assert not any(np.array_equal(each, expected) for each in found)
    assert not all(np.array_equal(each, found[0]) for each in found)


@pytest.mark.parametrize("send", WAYS)
def test_a_merge_without_sums_of_weights_is_none(send: Sent) -> None:
    """Negative control: it is what ranks with equal sums would make."""
    given, expected = of_engine(700, "fp32")

    def halved(first: Partial, second: Partial) -> Partial:
        return Partial((first.out + second.out) / 2, first.lse)

    found = Ring(*given, 3, merge=halved).run(send, ordered=False)
    assert np.abs(found - expected).max() > 100 * bound(given, 3)


@pytest.mark.parametrize("send", WAYS)
def test_in_another_order_it_is_not_the_engine(send: Sent, monkeypatch: pytest.MonkeyPatch) -> None:
    """Negative control: were the order nothing, equality above would be luck."""
    given, expected = of_engine(700, "fp32")
    honest = Ring._parts_of
    monkeypatch.setattr(Ring, "_parts_of", lambda ring, owner: honest(ring, owner)[::-1])
    found = Ring(*given, 3).run(send, ordered=True)
    assert not np.array_equal(found, expected)
    assert np.abs(found - expected).max() < bound(given, 3)


def busiest(heads: int, kv_heads: int, send: Sent, ordered: bool = False) -> int:
    """Bytes per row and round in the direction that carries most."""
    ring = Ring(*random_layer(4 * CHUNK, heads, kv_heads), 4, causal=False, zigzag=False)
    ring.run(send, ordered=ordered)
    assert (ring.sent == ring.sent[0]).all() or ordered
    return int(ring.sent.sum(axis=0).max()) // (3 * 4 * CHUNK)


def test_grouped_heads_turn_the_gain_of_queries_over() -> None:
    """Keys cost by their own heads; queries, and what comes back, by all."""
    for heads, kv_heads in ((2, 2), (6, 2), (6, 1)):
        assert busiest(heads, kv_heads, "keys") == 4 * 2 * kv_heads * 16
        assert busiest(heads, kv_heads, "queries") == 4 * heads * (16 + 1)
    assert busiest(2, 2, "queries") < busiest(2, 2, "keys")
    assert busiest(6, 1, "queries") > 3 * busiest(6, 1, "keys")


def test_in_order_keys_cost_no_byte_more_and_queries_do() -> None:
    assert busiest(2, 2, "keys", True) == busiest(2, 2, "keys")
    assert busiest(2, 2, "queries", True) > 1.5 * busiest(2, 2, "queries")


def test_pieces_mirror_one_another() -> None:
    assert chunks_of(8, 2, True) == [[0, 1, 6, 7], [2, 3, 4, 5]]
    assert chunks_of(5, 2, False) == [[0, 1, 2], [3, 4]]


@pytest.mark.parametrize(("ranks", "zigzag"), [(0, True), (2, True), (4, False)])
def test_a_rank_without_rows_is_refused(ranks: int, zigzag: bool) -> None:
    with pytest.raises(InvalidOption, match=r"ranks for 3 chunks"):
        Ring(*random_layer(300), ranks, zigzag=zigzag)
