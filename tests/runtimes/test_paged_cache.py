"""Block tables against a naive model: a cache is a list of rows, whatever was shared or copied."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from paceline.errors import OutOfMemory
from paceline.runtimes.kv_cache import BLOCK, BlockPool, PagedCache


def pool(blocks: int = 64) -> BlockPool:
    return BlockPool(layers=2, kv_heads=1, head_dim=2, blocks=blocks)


def write(cache: PagedCache, blocks: list[int], start: int, values: list[int]) -> None:
    """What a forward does: write rows at positions from `start` on."""
    for offset, value in enumerate(values):
        position = start + offset
        for each in cache.pool.slabs[0].token(blocks[position // BLOCK], position % BLOCK):
            each[:] = value


def read(cache: PagedCache) -> list[int]:
    places = [(cache.blocks[p // BLOCK], p % BLOCK) for p in range(cache.length)]
    tokens = [cache.pool.slabs[0].token(*place) for place in places]
    rows = [np.concatenate([each.ravel() for each in token]) for token in tokens]
    assert all(np.unique(row).size == 1 for row in rows)
    return [int(row.flat[0]) for row in rows]


def append(cache: PagedCache, values: list[int]) -> None:
    cache.reserve(len(values))
    write(cache, cache.blocks, cache.length, values)
    cache.length += len(values)


OPERATIONS = st.lists(
    st.one_of(
        st.tuples(st.just("append"), st.integers(1, 40)),
        st.tuples(st.just("fork"), st.just(0)),
        st.tuples(st.just("truncate"), st.integers(0, 60)),
        st.tuples(st.just("branch"), st.integers(0, 2)),
        st.tuples(st.just("release"), st.just(0)),
    ),
    max_size=25,
)


@settings(max_examples=150)
@given(OPERATIONS, st.randoms(use_true_random=False))
def test_caches_behave_like_independent_lists(operations, random):
    memory = pool(400)
    caches = [(PagedCache(memory), [])]
    counter = 0
    for name, size in operations:
        if not caches:
            caches.append((PagedCache(memory), []))
        index = random.randrange(len(caches))
        cache, rows = caches[index]
        if name == "append":
            values = list(range(counter, counter + size))
            counter += size
            append(cache, values)
            rows += values
        elif name == "fork":
            caches.append((cache.fork(), list(rows)))
        elif name == "truncate":
            cache.truncate(min(size, cache.length))
            del rows[size:]
        elif name == "release":
            cache.release()
            del caches[index]
        else:
            # A round: the root and three paths of two tokens, of which `size` says which is kept.
            paths = [(0, 1), (0, 2), (3, 4)]
            root = counter
            counter += 1 + 5
            cache.reserve(6)
            write(cache, cache.blocks, cache.length, list(range(root, counter)))
            cache.move([cache.length + 1 + node for node in paths[size]], cache.length + 1)
            cache.length += 3
            rows += [root, *(root + 1 + node for node in paths[size])]
        for other, expected in caches:
            assert read(other) == expected
    for cache, _ in caches:
        cache.release()
    assert memory.free == 400


def test_full_pool_is_said_and_leaves_the_cache_alone():
    memory = pool(2)
    cache = PagedCache(memory)
    append(cache, list(range(60)))
    with pytest.raises(OutOfMemory, match="64 tokens"):
        cache.reserve(10)
    assert read(cache) == list(range(60))
    cache.reserve(4)


def test_move_brings_path_rows_together():
    cache = PagedCache(pool())
    append(cache, list(range(30)))
    cache.reserve(6)
    write(cache, cache.blocks, 30, [100, 101, 102, 103, 104, 105])
    cache.move([32, 35], 31)
    cache.length = 33
    assert read(cache) == [*range(30), 100, 102, 105]


def test_rows_move_to_where_a_path_goes_on():
    cache = PagedCache(pool(8))
    append(cache, list(range(1, 31)))
    cache.reserve(10)
    write(cache, cache.blocks, 30, list(range(100, 110)))
    cache.move([30, 33, 34, 39], 30)
    cache.length += 4
    assert read(cache) == [*range(1, 31), 100, 103, 104, 109]


def test_keys_lie_number_by_number_and_values_token_by_token():
    memory = pool(2)
    for row in range(BLOCK):
        keys, values = memory.slabs[0].token(0, row)
        keys[1, 0] = values[1, 0] = row, row + 100
    first, second = range(BLOCK), range(100, 100 + BLOCK)
    assert memory.slabs[0].memory[2, 0, 0].tolist() == [*first, *second]
    pairs = zip(first, second, strict=True)
    assert memory.slabs[0].memory[3, 0, 0].tolist() == [each for pair in pairs for each in pair]
