"""The table of averaged laws against dictionaries."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.drafters.context_models import ContextTable

from paceline.methods.statistics.context_model import WIDTH, Context, Distribution

Known = dict[Context, tuple[Distribution, float]]


class Naive:
    """Laws of any number of tokens, the one written longest ago first."""

    def __init__(self, capacity: int) -> None:
        self.capacity = capacity
        self.known: Known = {}

    def add(self, context: Context, distribution: Distribution, weight: float) -> None:
        old, total = self.known.pop(context, ({}, 0.0))
        if len(self.known) == self.capacity:
            del self.known[next(iter(self.known))]
        past = min(total, 1.0)
        mixed = {
            token: (past * old.get(token, 0.0) + weight * distribution.get(token, 0.0))
            / (past + weight)
            for token in [*distribution, *old]
        }
        best = sorted(mixed, key=lambda token: -mixed[token])[:WIDTH]
        self.known[context] = ({token: mixed[token] for token in best}, total + weight)


LAWS = st.dictionaries(st.integers(0, 11), st.floats(0.01, 1), min_size=1, max_size=WIDTH).map(
    lambda distribution: {
        token: share / sum(distribution.values()) for token, share in distribution.items()
    }
)
CONTEXTS = st.lists(st.integers(0, 2), min_size=1, max_size=2).map(tuple)


@settings(max_examples=80)
@given(
    st.sampled_from([1, 2, 5, 100]),
    st.lists(st.tuples(CONTEXTS, LAWS, st.sampled_from([0.1, 1.0])), max_size=25),
)
def test_it_equals_a_dictionary(
    capacity: int, distributions: list[tuple[Context, Distribution, float]]
) -> None:
    table, naive = ContextTable(capacity), Naive(capacity)
    for context, distribution, weight in distributions:
        table.add(context, distribution, weight)
        naive.add(context, distribution, weight)
        assert len(table) == len(naive.known) <= capacity
        for each in [(a,) for a in range(3)] + [(a, b) for a in range(3) for b in range(3)]:
            found, expected = table.look(each), naive.known.get(each)
            assert (found is None) == (expected is None)
            if found is not None and expected is not None:
                assert list(found[0]) == list(expected[0])
                assert found[0] == pytest.approx(expected[0])
                assert found[1] == pytest.approx(expected[1])
                assert sum(found[0].values()) <= 1 + 1e-9


def test_the_latest_law_is_worth_half_and_comes_first_among_equals() -> None:
    table = ContextTable(4)
    for token in (7, 7, 7, 9):
        table.add((1,), {token: 1.0}, 1.0)
    found = table.look((1,))
    assert found is not None
    assert list(found[0].items()) == [(9, 0.5), (7, 0.5)]
    assert found[1] == 4.0


def test_writing_keeps_a_context_and_looking_does_not() -> None:
    table = ContextTable(2)
    for context in ((1,), (2,), (1,)):
        table.add(context, {5: 1.0}, 1.0)
    table.look((2,))
    table.add((3,), {5: 1.0}, 1.0)
    assert table.look((2,)) is None
    assert table.look((1,)) is not None


def test_what_has_no_share_is_not_kept() -> None:
    table = ContextTable(1)
    table.add((1,), {5: 1.0, 6: 0.0}, 1.0)
    assert table.look((1,)) == ({5: 1.0}, 1.0)
