"""Counters add up, and ratios are of what they say."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from paceline.core.metrics import GenerationStats

steps = st.lists(
    st.tuples(st.integers(0, 5), st.integers(0, 5)).map(lambda pair: (max(pair), min(pair))),
    max_size=10,
)


def recorded(rounds: list[tuple[int, int]]) -> GenerationStats:
    """Rounds of (depth of the draft, accepted tokens), committing one more each."""
    stats = GenerationStats()
    for depth, accepted in rounds:
        stats.record(depth, depth, accepted)
        stats.committed_tokens += accepted + 1
    return stats


def test_nothing_recorded() -> None:
    stats = GenerationStats()
    assert stats.block_efficiency == 0
    assert stats.acceptance_by_depth == []
    assert stats.tokens_per_second == stats.draft_share == stats.overhead_share == 0
    assert stats.as_dict()["first_token_seconds"] is None


def test_counts_by_depth() -> None:
    stats = recorded([(3, 2), (1, 0), (0, 0), (2, 2)])
    assert stats.target_forwards == 4
    assert stats.drafted_tokens == 6
    assert stats.accepted_tokens == 4
    assert stats.drafted_by_depth == [3, 2, 1]
    assert stats.accepted_by_depth == [2, 2, 0]
    assert stats.acceptance_by_depth == pytest.approx([2 / 3, 1.0, 0.0])
    assert stats.block_efficiency == 2.0


@given(steps, steps)
def test_adding_equals_recording_both(
    first: list[tuple[int, int]], second: list[tuple[int, int]]
) -> None:
    total = recorded(first)
    total.add(recorded(second))
    assert total == recorded(first + second)


@given(steps)
def test_accepted_counts_agree(rounds: list[tuple[int, int]]) -> None:
    stats = recorded(rounds)
    assert sum(stats.accepted_by_depth) == stats.accepted_tokens
    assert all(0 <= share <= 1 for share in stats.acceptance_by_depth)


def test_times() -> None:
    stats = GenerationStats(
        committed_tokens=30, draft_seconds=1.0, forward_seconds=7.0, overhead_seconds=2.0
    )
    other = GenerationStats(committed_tokens=10, forward_seconds=10.0, prefill_seconds=5.0)
    assert stats.verify_seconds == 9
    assert stats.decode_seconds == 10
    assert stats.tokens_per_second == 3
    assert stats.draft_share == pytest.approx(0.1)
    assert stats.overhead_share == pytest.approx(0.2)
    stats.add(other)
    assert stats.tokens_per_second == 2
    assert stats.prefill_seconds == 5


def test_the_documented_names_serialise() -> None:
    figures = recorded([(2, 1)]).as_dict()
    promised = {
        "target_forwards",
        "committed_tokens",
        "block_efficiency",
        "acceptance_by_depth",
        "draft_seconds",
        "verify_seconds",
        "prefill_seconds",
        "tokens_per_second",
    }
    assert promised <= set(figures)
    assert json.loads(json.dumps(figures)) == figures
