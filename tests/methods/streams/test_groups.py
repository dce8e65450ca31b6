"""Two streams in one cache: what comes bit by bit is one forward under the streaming mask."""

from __future__ import annotations

import random
from typing import Any

import numpy as np
import pytest
from tests.helpers.tiny_model import tiny_config
from tests.runtimes.tiny_cpu import weights

from paceline.core.target import Rows
from paceline.errors import InvalidOption
from paceline.methods.streams import groups as streams
from paceline.methods.streams.groups import TwoStreams, masked_rows, streaming_mask, wait_k
from paceline.runtimes.cpu.target import CpuTarget
from paceline.runtimes.reference.target import ReferenceTarget

CONFIG = tiny_config("qwen2")
WEIGHTS = weights(CONFIG)
RNG = np.random.default_rng(4)
SOURCE = RNG.integers(3, CONFIG.vocab_size, 140).tolist()  # more than one chunk of sums
TARGET = RNG.integers(3, CONFIG.vocab_size, 24).tolist()
TARGETS = {
    "cpu": CpuTarget(CONFIG, WEIGHTS, "fp32", kv_tokens=2048),
    "reference": ReferenceTarget(CONFIG, WEIGHTS, "fp32"),
}


@pytest.fixture(params=TARGETS)
def target(request: pytest.FixtureRequest) -> Any:
    return TARGETS[request.param]


def arrivals(seed: int, ratio: int = 4) -> list[tuple[int, int]]:
    """Rows of source and target by pass, in a random order of arrival."""
    rng, out, source, written = random.Random(seed), [], 0, 0
    while source < len(SOURCE) or written < len(TARGET):
        some = min(rng.randrange(0, 12), len(SOURCE) - source)
        few = min(rng.randrange(0, 3), len(TARGET) - written) if source > ratio * written else 0
        few = len(TARGET) - written if source == len(SOURCE) and not few else few
        if some or few:
            out.append((some, few))
        source, written = source + some, written + few
    return out


def streamed(target: Any, seed: int, seen: list[int] | None = None) -> tuple[Any, list[int]]:
    """Logits of all target rows and what each saw; by what had come, or as `seen` says."""
    groups, found, saw = TwoStreams(target, 3), [], []
    for some, few in arrivals(seed):
        source, written = len(groups.source), len(groups.written)
        own = [source] * few if seen is None else seen[written : written + few]
        new = SOURCE[source : source + some]
        found.append(np.array(groups.forward(new, TARGET[written : written + few], own)))
        groups.keep()
        saw += own
    groups.close()
    return np.concatenate(found), saw


def at_once(target: Any, seen: list[int], offset: int = 3) -> Any:
    cache = target.open()
    [out] = target.forward([masked_rows(cache, SOURCE, TARGET, seen, offset)])
    found = np.array(out.logits)
    target.release(cache)
    return found


@pytest.mark.parametrize("seed", range(2))
def test_bit_by_bit_is_one_masked_forward(target: Any, seed: int) -> None:
    found, seen = streamed(target, seed)
    np.testing.assert_array_equal(found, at_once(target, seen))
    # Controls: other positions, and targets that see a word more.
    assert not np.array_equal(found, at_once(target, seen, 4))
    more = [min(each + 1, len(SOURCE)) for each in seen]
    assert not np.array_equal(found, at_once(target, more))


def test_the_order_of_arrival_changes_no_bit() -> None:
    target = TARGETS["cpu"]
    seen = [0] * len(TARGET)  # less than had come in any of the orders
    first, second = (streamed(target, seed, seen)[0] for seed in (0, 1))
    assert arrivals(0) != arrivals(1)
    np.testing.assert_array_equal(first, second)


def test_sums_in_order_of_arrival_have_other_bits(monkeypatch: pytest.MonkeyPatch) -> None:
    """What the order of places is for."""
    padded = streams._padded
    monkeypatch.setattr(streams, "_padded", lambda paths: padded([sorted(path) for path in paths]))
    found, seen = streamed(TARGETS["cpu"], 0)
    expected = at_once(TARGETS["cpu"], seen)
    assert not np.array_equal(found, expected)
    np.testing.assert_allclose(found, expected, atol=1e-3)


def test_both_runtimes_have_the_same_numbers() -> None:
    one, other = (streamed(target, 0)[0] for target in TARGETS.values())
    np.testing.assert_array_equal(one, other)


def test_the_source_does_not_change_when_the_target_grows() -> None:
    target = TARGETS["reference"]
    alone, beside = target.open(), TwoStreams(target)
    target.forward([Rows.draft(alone, SOURCE[:20])])
    target.keep(alone, 20, ())
    for at in range(0, 20, 5):
        beside.forward(SOURCE[at : at + 5], TARGET[at : at + 5])
        beside.keep()
    stored = beside.cache.data[:, :, beside.source]
    np.testing.assert_array_equal(stored, alone.data[:, :, :20])
    # Control: a source row that sees the target, as in a plain cache.
    mixed = target.open()
    target.forward([Rows.draft(mixed, SOURCE[:5] + TARGET[:5] + SOURCE[5:10])])
    target.keep(mixed, 15, ())
    assert not np.array_equal(mixed.data[:, :, 10:15], alone.data[:, :, 5:10])


def test_some_target_rows_of_a_pass_are_kept() -> None:
    """As where they were drafted."""
    target = TARGETS["cpu"]
    groups = TwoStreams(target)
    groups.forward(SOURCE[:9], [])
    groups.keep()
    groups.forward([], [*TARGET[:2], 5, 6])
    groups.keep(2)
    after = np.array(groups.forward([], TARGET[2:3]))
    plain = TwoStreams(target)
    plain.forward(SOURCE[:9], [])
    plain.keep()
    expected = plain.forward([], TARGET[:3])[2:]
    np.testing.assert_array_equal(after, expected)


WORDS = [SOURCE[at : at + 3] for at in range(0, 30, 3)]


def follows(target: Any, k: int, most: int = 12) -> list[int]:
    """What a text should be: every token by a forward of its own over all rows."""
    out: list[int] = []
    ends = np.cumsum([len(word) for word in WORDS]).tolist()
    while len(out) < most:
        rows = [7, *out]
        seen = [ends[min(k + at, len(WORDS)) - 1] for at in range(len(rows))]
        cache = target.open()
        source = [token for word in WORDS for token in word][: max(seen)]
        [found] = target.forward([masked_rows(cache, source, rows, seen)])
        out.append(int(found.logits[-1].argmax()))
        target.release(cache)
    return out


@pytest.mark.parametrize("k", [1, 3, len(WORDS)])
def test_a_text_waits_for_k_words_and_sees_no_more(k: int) -> None:
    target = TARGETS["cpu"]
    found = wait_k(target, WORDS, k, [7], 12)
    assert found == follows(target, k)
    # The words behind those that it waited for change nothing before their time.
    other = [*WORDS[: k + 1], *([5, 6, 8] for _ in WORDS[k + 1 :])]
    assert wait_k(target, other, k, [7], 2) == found[:2]


def test_a_text_ends_at_its_end_and_without_a_source() -> None:
    target = TARGETS["cpu"]
    found = wait_k(target, WORDS, 2, [7], 12)
    assert wait_k(target, WORDS, 2, [7], 12, end=[found[3]]) == found[: found.index(found[3])]
    assert len(wait_k(target, [], 1, [7], 4)) == 4


def test_what_makes_no_sense_is_refused() -> None:
    target = TARGETS["cpu"]
    for k, start, most in ((0, [7], 1), (1, [], 1), (1, [7], 0)):
        with pytest.raises(InvalidOption, match="1 or more"):
            wait_k(target, WORDS, k, start, most)


def test_the_mask_is_that_of_the_paper() -> None:
    mask = streaming_mask(3, [1, 2])
    assert mask.astype(int).tolist() == [
        [1, 0, 0, 0, 0],
        [1, 1, 0, 0, 0],
        [1, 1, 1, 0, 0],
        [1, 0, 0, 1, 0],
        [1, 1, 0, 1, 1],
    ]
