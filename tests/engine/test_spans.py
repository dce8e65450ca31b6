"""Pictures in prompts: read in chunks of any size to the same bits, and cached by their ids."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from tests.runtimes import tiny_cpu

from paceline.core.target import Rows
from paceline.core.types import Needs, SamplingParams
from paceline.engine import prefill
from paceline.engine.prefill import Prefiller, shared_out, uncut
from paceline.runtimes.kv_cache import BlockPool, PagedCache
from paceline.sampling.generation import Generation

ROWS = 40
BEFORE, BETWEEN, BEHIND = [5, 9, 17, 23, 9], [42, 7], [11, 12, 13]


def shown(target: Any, *numbers: int) -> tuple[list[int], list[range]]:
    """A prompt with a picture of each number, and where they are."""
    tokens, spans = list(BEFORE), []
    for number in numbers:
        run = target.rows.hold(bytes([number]), ROWS)
        if not run.filled:
            rng = np.random.default_rng(number)
            target.rows.fill(run, rng.normal(size=(ROWS, 64)).astype(np.float32))
        spans.append(range(len(tokens), len(tokens) + ROWS))
        tokens += [*run.ids, *BETWEEN]
    return tokens + BEHIND, spans


def sequence_of(tokens: list[int], spans: list[range]) -> Generation:
    sequence = Generation.start(0, tokens, SamplingParams())
    sequence.spans = spans
    return sequence


def last_logits(target: Any, sequence: Generation, chunk: int | None) -> np.ndarray:
    reader, needs = Prefiller(target), Needs()
    reader.open(sequence, needs)
    if chunk is None:
        reader.read_all(sequence, needs)
    while sequence.unread:
        [each] = shared_out([sequence], chunk or 1)
        [output] = target.forward(reader.rows([each], needs))
        reader.take(each, output, 0.0)
    [output] = target.forward([Rows.draft(sequence.cache, sequence.tokens[-1:])])
    found: np.ndarray = output.logits[0].copy()
    target.release(sequence.cache)
    return found


def at_once(target: Any, tokens: list[int], spans: list[range]) -> np.ndarray:
    sees = np.tri(len(tokens), dtype=np.bool_)
    for span in spans:
        sees[span.start : span.stop, span.start : span.stop] = True
    cache, count = target.open(), len(tokens)
    [output] = target.forward([Rows.block(cache, tokens, np.arange(count), sees, num_new=count)])
    found: np.ndarray = output.logits[-1].copy()
    target.release(cache)
    return found


@pytest.mark.parametrize("together", [False, True])
def test_chunks_of_any_size_give_the_same_bits(together: bool) -> None:
    target = tiny_cpu.target("fp32", prefix_tokens=0)
    tokens, spans = shown(target, 1, 2)
    spans = spans if together else []
    expected = at_once(target, tokens, spans)
    for chunk in (None, 7, 16, 45, 64, 512):
        found = last_logits(target, sequence_of(tokens, spans), chunk)
        np.testing.assert_array_equal(found, expected)
    other, _ = shown(target, 2, 1)
    swapped = at_once(target, other, spans)
    assert np.abs(swapped - expected).max() > 1e-3


def test_spans_that_are_cut_give_other_bits(monkeypatch: pytest.MonkeyPatch) -> None:
    target = tiny_cpu.target("fp32", prefix_tokens=0)
    tokens, spans = shown(target, 1)
    expected = at_once(target, tokens, spans)
    monkeypatch.setattr(prefill, "uncut", lambda _, tokens: tokens)
    found = last_logits(target, sequence_of(tokens, spans), 16)
    assert np.abs(found - expected).max() > 1e-4


@pytest.mark.parametrize("together", [False, True])
def test_the_prefix_cache_knows_a_picture_by_its_ids(together: bool) -> None:
    target = tiny_cpu.target("fp32")
    tokens, spans = shown(target, 1)
    spans = spans if together else []
    first = last_logits(target, sequence_of(tokens, spans), 64)
    again = sequence_of(tokens, spans)
    np.testing.assert_array_equal(last_logits(target, again, 64), first)
    assert again.stats.cached_tokens == 32
    others, _ = shown(target, 3)
    other = sequence_of(others, spans)
    found = last_logits(target, other, 64)
    assert other.stats.cached_tokens == 0
    np.testing.assert_array_equal(found, at_once(target, others, spans))


def test_a_chunk_ends_before_a_span_or_behind_it() -> None:
    sequence = Generation.start(0, [1] * 100, SamplingParams())
    sequence.spans = [range(10, 50), range(60, 90)]
    sizes = {0: {5: 5, 10: 10, 20: 10, 50: 50, 55: 55, 70: 60, 99: 99}, 10: {1: 40, 40: 40}}
    sizes |= {30: {0: 0, 5: 20, 20: 20, 31: 30}, 50: {9: 9, 20: 10}}
    for begin, each in sizes.items():
        sequence.cache = PagedCache(BlockPool(1, 1, 1, 8), length=begin)
        assert {size: uncut(sequence, size) for size in each} == each
