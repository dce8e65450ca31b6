"""The table of averaged laws against dictionaries."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from paceline.drafters.context_table import NOTHING, WIDTH, Context, ContextTable
from paceline.types import IntArray, ProbArray

Known = dict[Context, tuple[dict[int, float], float]]


class Naive:
    """One law after another into a dictionary, the one written longest ago first."""

    def __init__(self, capacity: int) -> None:
        self.capacity = capacity
        self.known: Known = {}

    def add(
        self, contexts: list[Context], tokens: IntArray, shares: ProbArray, weight: float
    ) -> None:
        repeats = [contexts[row:].count(context) for row, context in enumerate(contexts)]
        for row in sorted(range(len(contexts)), key=lambda row: -repeats[row]):
            context, ids, parts = contexts[row], tokens[row].tolist(), shares[row].tolist()
            law, total = self.known.pop(context, ({}, 0.0))
            if len(self.known) == self.capacity:
                del self.known[next(iter(self.known))]
            past = min(total, 1.0)
            mixed = {token: past * share / (past + weight) for token, share in law.items()}
            for token, share in zip(ids, parts, strict=True):
                mixed[token] = mixed.get(token, 0.0) + weight * share / (past + weight)
            best = sorted(mixed, key=lambda token: -mixed[token])[:WIDTH]
            self.known[context] = ({token: mixed[token] for token in best}, total + weight)


def laws(rows: int, k: int, seed: int) -> tuple[IntArray, ProbArray]:
    """Random laws over ten tokens, no two shares alike."""
    generator = np.random.default_rng(seed)
    tokens = np.argsort(generator.random((rows, 10)), axis=1)[:, :k]
    return tokens, generator.dirichlet(np.ones(k), rows)


BATCHES = st.lists(
    st.tuples(
        st.lists(st.lists(st.integers(0, 2), min_size=1, max_size=2).map(tuple), max_size=7),
        st.integers(1, WIDTH),
        st.sampled_from([0.1, 1.0]),
    ),
    max_size=6,
)


@settings(max_examples=50, deadline=None)
@given(st.sampled_from([1, 2, 5, 100]), BATCHES, st.integers(0, 99))
def test_it_equals_a_dictionary_fed_one_law_after_another(
    capacity: int, batches: list[tuple[list[Context], int, float]], seed: int
) -> None:
    table, naive = ContextTable(capacity), Naive(capacity)
    for contexts, k, weight in batches:
        tokens, shares = laws(len(contexts), k, seed := seed + 1)
        table.add(contexts, tokens, shares, weight)
        naive.add(contexts, tokens, shares, weight)
        assert len(table) == len(naive.known) <= capacity
        for context in [(a,) for a in range(3)] + [(a, b) for a in range(3) for b in range(3)]:
            found, expected = table.look(context), naive.known.get(context)
            assert (found is None) == (expected is None)
            if found is None or expected is None:
                continue
            tokens_found, shares_found, weight_found = found
            law = {t: s for t, s in zip(tokens_found, shares_found, strict=True) if t != NOTHING}
            assert law == pytest.approx(expected[0], abs=1e-5)
            assert weight_found == pytest.approx(expected[1])
            assert shares_found == sorted(shares_found, reverse=True)
            assert sum(shares_found) <= 1 + 1e-5
            places = [token == NOTHING for token in tokens_found]
            assert places == sorted(places)
            assert [share == 0 for share in shares_found] == places


def test_the_latest_law_is_worth_half_and_comes_first_among_equals() -> None:
    table = ContextTable(4)
    for token in (7, 7, 7, 9):
        table.add([(1,)], np.array([[token]]), np.ones((1, 1)), 1.0)
    found = table.look((1,))
    assert found is not None
    assert found[0][:2] == [9, 7]
    assert found[1][:2] == pytest.approx([0.5, 0.5])
    assert found[2] == 4.0


def test_the_last_laws_of_a_context_count_however_many_come_at_once() -> None:
    table = ContextTable(4)
    tokens = np.array([[token] for token in (3, 4) * 100])
    table.add([(1,)] * 200, tokens, np.ones((200, 1)), 0.5)
    found = table.look((1,))
    assert found is not None
    assert found[0][:2] == [4, 3]
    assert found[2] == 16 * 0.5


def test_writing_keeps_a_context_and_looking_does_not() -> None:
    table = ContextTable(2)
    law = np.array([[5]]), np.ones((1, 1)), 1.0
    for context in ((1,), (2,), (1,)):
        table.add([context], *law)
    table.look((2,))
    table.add([(3,)], *law)
    assert table.look((2,)) is None
    assert table.look((1,)) is not None


def test_a_reused_place_holds_nothing_of_the_context_before() -> None:
    table = ContextTable(1)
    table.add([(1,)], np.array([[5, 6]]), np.array([[0.6, 0.4]]), 1.0)
    table.add([(2,)], np.array([[8]]), np.ones((1, 1)), 0.5)
    assert table.look((2,)) == ([8] + [NOTHING] * (WIDTH - 1), [1.0] + [0.0] * (WIDTH - 1), 0.5)
