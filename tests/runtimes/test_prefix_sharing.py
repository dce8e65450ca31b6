"""Shared beginnings: what is found holds the right tokens, whatever was written or evicted."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from paceline.core.target import LEAVING, whole
from paceline.errors import OutOfMemory
from paceline.runtimes.kv_cache import BLOCK, BlockPool, PagedCache, PrefixIndex


def pool(blocks: int, keep: int | None = None) -> BlockPool:
    return BlockPool(layers=1, kv_heads=1, head_dim=1, blocks=blocks, keep=keep)


def append(cache: PagedCache, tokens: Sequence[int]) -> None:
    cache.reserve(len(tokens))
    for position, token in enumerate(tokens, start=cache.length):
        cache.pool.slabs[0].memory[:, cache.blocks[position // BLOCK], :, position % BLOCK] = token
    cache.length += len(tokens)


def read(cache: PagedCache) -> list[int]:
    rows = cache.pool.slabs[0].memory[0, cache.blocks, 0].astype(int).ravel()
    return rows[: cache.length].tolist()


def begun(memory: BlockPool, tokens: Sequence[int]) -> PagedCache:
    """A cache of `tokens` that shares what is known of them."""
    cache = PagedCache(memory)
    cache.share(tokens)
    append(cache, tokens[cache.length :])
    cache.publish(tokens)
    return cache


STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("open"), st.integers(0, 5), st.integers(0, 110)),
        st.tuples(st.just("append"), st.integers(0, 9), st.integers(1, 40)),
        st.tuples(st.just("truncate"), st.integers(0, 9), st.integers(0, 90)),
        st.tuples(st.just("fork"), st.integers(0, 9), st.just(0)),
        st.tuples(st.just("branch"), st.integers(0, 9), st.integers(0, 1)),
        st.tuples(st.just("publish"), st.integers(0, 9), st.just(0)),
        st.tuples(st.just("release"), st.integers(0, 9), st.just(0)),
    ),
    max_size=40,
)


@settings(max_examples=150)
@given(STEPS, st.integers(4, 24), st.sampled_from([None, 0, 1, 3]))
def test_caches_hold_their_own_tokens_whatever_others_share(steps, blocks, keep):
    """Six texts that agree up to some point; memory is short, so blocks are evicted and reused."""
    texts = [[*([1] * 70), *([2 + t] * 60)] if t % 2 else [8 + t] * 130 for t in range(6)]
    memory = pool(blocks, keep)
    caches: list[tuple[PagedCache, list[int]]] = []
    counter = 100
    for name, which, size in steps:
        index = which % len(caches) if caches else -1
        try:
            if name == "open":
                cache, tokens = PagedCache(memory), texts[which][:size]
                cache.share(tokens)
                assert cache.length % BLOCK == 0
                assert cache.length <= len(tokens)
                caches.append((cache, tokens[: cache.length]))
                append(cache, tokens[cache.length :])
                caches[-1] = (cache, list(tokens))
            elif index < 0:
                continue
            cache, tokens = caches[index]
            if name == "append":
                new = list(range(counter, counter + size))
                counter += size
                append(cache, new)
                tokens += new
            elif name == "truncate":
                cache.truncate(min(size, cache.length))
                del tokens[size:]
            elif name == "fork":
                caches.append((cache.fork(), list(tokens)))
            elif name == "branch":
                cache.reserve(3)
                for position, row in enumerate((99, counter, counter + 1), cache.length):
                    block = cache.blocks[position // BLOCK]
                    memory.slabs[0].memory[:, block, :, position % BLOCK] = row
                cache.move([cache.length + 1 + size], cache.length + 1)
                cache.length += 2
                tokens += [99, counter + size]
                counter += 2
            elif name == "publish":
                cache.publish(tokens)
            elif name == "release":
                cache.publish(tokens)
                cache.release()
                del caches[index]
        except OutOfMemory:
            for cache, _ in caches:
                cache.discard()
        for cache, tokens in caches:
            assert read(cache) == tokens
    for cache, _ in caches:
        cache.release()
    assert memory.free == memory.blocks == blocks
    assert len(set(memory.take(blocks))) == blocks


def test_a_common_beginning_is_held_once():
    memory = pool(20)
    system = list(range(3 * BLOCK))
    first = begun(memory, [*system, 7, 8])
    used = memory.blocks - memory.free
    second = begun(memory, [*system, 9])
    assert second.blocks[:3] == first.blocks[:3]
    assert memory.blocks - memory.free == used + 1
    append(first, [5] * 40)
    assert read(second) == [*system, 9]


def test_only_full_blocks_with_the_same_past_are_shared():
    memory = pool(20)
    begun(memory, [1] * BLOCK + [2] * BLOCK)
    other = PagedCache(memory)
    other.share([3] * BLOCK + [2] * BLOCK)  # the second block's tokens, after another first
    assert other.length == 0
    other.share([1] * BLOCK + [2] * (BLOCK - 1))
    assert other.length == BLOCK


def test_known_blocks_outlive_their_sequence_until_memory_is_wanted():
    memory = pool(6)
    text = list(range(3 * BLOCK))
    begun(memory, text).release()
    assert memory.free == 6
    again = begun(memory, text)
    assert again.length == len(text)
    again.release()
    other = begun(memory, [500 + t for t in range(4 * BLOCK)])  # takes one of the three
    third = PagedCache(memory)
    third.share(text)
    assert third.length == 2 * BLOCK  # the end of the chain went first
    assert read(third) == text[: 2 * BLOCK]
    third.release()
    other.release()


def test_the_longest_unused_goes_first():
    memory = pool(4)
    texts = [[t] * BLOCK for t in range(3)]
    for text in (*texts, texts[0]):
        begun(memory, text).release()
    begun(memory, [9] * (2 * BLOCK)).release()  # one free block, and that of text 1
    known = []
    for text in texts:
        cache = PagedCache(memory)
        cache.share(text)
        known.append(cache.length > 0)
        cache.release()
    assert known == [True, False, True]


def test_prefixes_keep_what_the_machine_has_room_for():
    memory = pool(64, keep=2)
    text = [*range(40 * BLOCK)]
    begun(memory, text).release()
    cache = PagedCache(memory)
    cache.share(text)
    assert cache.length == len(text)
    cache.release()
    assert memory.free == 64
    memory.take(60)  # prefixes give way
    cache.share(text)
    assert cache.length <= 4 * BLOCK


def test_beyond_the_floor_no_new_memory_is_taken_where_there_is_none(monkeypatch):
    monkeypatch.setattr("paceline.runtimes.kv_cache.free_memory", lambda: 0)
    memory = pool(12, keep=2)
    texts = [[t] * (2 * BLOCK) for t in range(3)]
    for text in texts:
        begun(memory, text).release()
    known = []
    for text in texts:
        cache = PagedCache(memory)
        cache.share(text)
        known.append(cache.length)
        cache.release()
    assert known == [0, 2 * BLOCK, 2 * BLOCK]
    assert memory._used == 4


def test_a_rewritten_block_is_not_found_any_more():
    memory = pool(8)
    cache = begun(memory, [1] * (2 * BLOCK))
    cache.truncate(BLOCK + 3)
    append(cache, [4] * 40)
    other = PagedCache(memory)
    other.share([1] * (2 * BLOCK))
    assert other.length == BLOCK


def test_nothing_is_shared_where_sharing_is_off():
    memory = pool(8, keep=0)
    begun(memory, [1] * BLOCK)
    cache = PagedCache(memory)
    cache.share([1] * BLOCK)
    assert cache.length == 0


def test_needed_is_what_reserve_takes():
    memory = pool(30)
    cache = begun(memory, list(range(70)))
    for twin in (cache, cache.fork()):
        for tokens in (1, 26, 27, 90):
            before, needed = memory.free, twin.needed(tokens)
            twin.reserve(tokens)
            assert before - memory.free == needed


def test_a_token_takes_a_key_and_a_value():
    assert pool(5).bytes_per_token == 2 * 4


def test_negative_control_a_block_that_stays_known_while_written_misleads(monkeypatch):
    """Without `reserve` forgetting what it is about to change, the property above fails."""
    memory = pool(8)
    cache = begun(memory, [1] * BLOCK)
    monkeypatch.setattr(PrefixIndex, "remove", lambda self, block: None)
    cache.truncate(5)
    append(cache, [4] * (BLOCK - 5))
    other = PagedCache(memory)
    other.share([1] * BLOCK)
    assert read(other) != [1] * BLOCK
    assert np.any(memory.slabs[0].memory)


@pytest.mark.parametrize("known", [0, 1, 31, 32, 33, 64, 100])
def test_the_index_finds_whole_blocks_alone(known):
    index = PrefixIndex(BLOCK)
    tokens = list(range(100))
    index.add(index.names(tokens[:known]), [10, 11, 12])
    assert index.find(index.names(tokens)) == [10, 11, 12][: known // BLOCK]


def test_a_block_is_named_by_all_that_it_depends_on():
    """By every token before it, and behind the first loss by the window of an endless text."""
    index, full = PrefixIndex(BLOCK), whole(LEAVING)
    tokens = list(range(full + 3 * BLOCK))
    plain, endless = index.names(tokens), index.names(tokens, LEAVING)
    assert plain[: full // BLOCK] == endless[: full // BLOCK]
    assert not set(plain[full // BLOCK :]) & set(endless)
    assert not set(endless[full // BLOCK :]) & set(index.names(tokens, 2 * LEAVING))
    assert not set(plain) & set(index.names([1, *tokens[1:]]))
