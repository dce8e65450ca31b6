"""Texts without an end: the first tokens stay, the oldest of the others leave."""

from __future__ import annotations

import random
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from tests.helpers.tiny_model import tiny_config
from tests.runtimes.tiny_cpu import weights

from paceline.core import tree as trees
from paceline.core.target import LEAVING, SINKS, Rows, room_of, stored
from paceline.core.types import LogitArray
from paceline.runtimes.cpu.target import CpuTarget
from paceline.runtimes.reference.target import ReferenceTarget

WINDOW = 128
WHOLE = SINKS + WINDOW + LEAVING
ENDS = [40, WHOLE - 1, WHOLE, WHOLE + 70, WHOLE + 2 * LEAVING, WHOLE + 2 * LEAVING + 41]
CONFIG = replace(tiny_config("qwen2"), max_context=512)  # shorter than the texts
TOKENS = np.random.default_rng(1).integers(3, CONFIG.vocab_size, ENDS[-1] + 50).tolist()


def cpu(blocks: int = 40) -> CpuTarget:
    return CpuTarget(CONFIG, weights(CONFIG), "fp32", kv_tokens=32 * blocks)


def read(target: Any, end: int, sizes: random.Random | None = None, window: int = WINDOW) -> Any:
    """Return a cache that holds the first tokens, read in chunks of any sizes."""
    cache = target.open()
    cache.window = window
    while cache.length < end:
        most = min(room_of(cache), end - cache.length)
        size = most if sizes is None else min(most, sizes.randrange(1, 200))
        target.forward([Rows.draft(cache, TOKENS[cache.length : cache.length + size])])
        target.keep(cache, size, ())
        if not room_of(cache):
            target.slide(cache, TOKENS[:SINKS])
    return cache


def logits(target: Any, cache: Any, draft: Any = None) -> LogitArray:
    [out] = target.forward([Rows.draft(cache, [TOKENS[cache.length]], draft)])
    return np.array(out.logits)


@pytest.mark.parametrize("end", ENDS)
def test_kernels_and_reference_have_the_same_numbers(end: int) -> None:
    target, reference = cpu(), ReferenceTarget(CONFIG, weights(CONFIG), "fp32")
    one, other = read(target, end), read(reference, end)
    assert stored(one) == stored(other) == (end if end < WHOLE else end - one.gone)
    tree = trees.chain([5, 6, 7])
    for draft in (None, tree):
        found = [logits(target, one, draft), logits(reference, other, draft)]
        np.testing.assert_array_equal(*found)


def test_before_anything_leaves_all_is_as_without_an_end() -> None:
    target = cpu()
    for end in (40, WHOLE - 1):
        plain = read(target, end, window=WHOLE)
        np.testing.assert_array_equal(logits(target, read(target, end)), logits(target, plain))


def test_chunks_and_drafts_change_no_bit() -> None:
    target, end = cpu(80), ENDS[-1]
    whole = logits(target, read(target, end))
    for seed in range(3):
        cache = read(target, end - 20, random.Random(seed))
        while cache.length < end:  # drafts that are right in part
            count = min(3, end - cache.length - 1)
            guess = [*TOKENS[cache.length + 1 : cache.length + 1 + count], 4]
            target.forward([Rows.draft(cache, [TOKENS[cache.length]], trees.chain(guess))])
            target.keep(cache, 1, range(count))
        np.testing.assert_array_equal(logits(target, cache), whole)


def test_memory_stays_and_comes_back() -> None:
    target = cpu()
    cache = read(target, ENDS[-1])
    assert len(cache.blocks) <= (WHOLE + SINKS) // 32
    twin = target.fork(cache)
    np.testing.assert_array_equal(logits(target, twin), logits(target, cache))
    target.truncate(twin, 50)
    assert (twin.length, twin.gone) == (0, 0)  # what has left is wanted again
    for each in (cache, twin):
        target.release(each)
    assert target.memory.free == target.memory.blocks


def test_nothing_is_shared_that_depends_on_what_has_left() -> None:
    target = cpu(120)
    cache = read(target, ENDS[-1])
    cache.publish(TOKENS[: cache.length], ended=True)
    target.release(cache)
    after = read(target, ENDS[-1])
    other = target.open()
    other.share(TOKENS)
    assert other.length == 0
    fresh = cpu()
    np.testing.assert_array_equal(logits(target, after), logits(fresh, read(fresh, ENDS[-1])))


@pytest.mark.parametrize("wrong", ["sinks stay behind", "all is read again"])
def test_controls_differ(wrong: str, monkeypatch: pytest.MonkeyPatch) -> None:
    target, end = cpu(80), ENDS[-1]
    right = logits(target, read(target, end))
    if wrong == "sinks stay behind":
        monkeypatch.setattr(type(target), "slide", lambda self, cache, sinks: cache.leave())
        other = logits(target, read(target, end))
    else:  # the kept tokens alone, without those that their numbers depend on
        kept = read(target, end)
        cache = target.open()
        tokens = TOKENS[:SINKS] + TOKENS[SINKS + kept.gone : end]
        target.prefill(cache, tokens)
        [out] = target.forward([Rows.draft(cache, [TOKENS[end]])])
        other = out.logits
    assert not np.array_equal(right, other)
