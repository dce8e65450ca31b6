"""Kinds of evidence, and chances that several contexts share."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from paceline.drafters.candidates import (
    LENGTHS,
    Evidence,
    alone,
    evidence_rates,
    length_kind,
    length_kinds,
    spread_kind,
    weigh,
)
from paceline.trees.candidates import FLOOR

RATES = evidence_rates(1.0, 0.6).rates
TABLE = RATES.tolist()


def test_kinds_of_lengths_in_a_row_are_those_of_each() -> None:
    for length in range(1, 40):
        for count in range(12):
            wanted = [length_kind(length + more) for more in range(count)]
            assert length_kinds(length, count) == wanted


def test_lengths_are_told_apart_the_better_the_shorter() -> None:
    kinds = [length_kind(length) for length in range(1, 40)]
    assert kinds == sorted(kinds)
    assert set(kinds) == set(range(LENGTHS))
    assert kinds[:5] == [0, 1, 2, 3, 4]
    assert [kinds.index(k) + 1 for k in range(LENGTHS)] == [1, 2, 3, 4, 5, 6, 8, 12, 20]


@pytest.mark.parametrize(
    ("times", "occurrences", "kind"),
    [
        *[(1, 1, 0), (2, 2, 1), (3, 3, 2), (9, 9, 2), (1, 2, 3), (5, 9, 3)],
        *[(2, 5, 4), (1, 4, 4), (1, 5, 5), (1, 10, 5), (1, 11, 6), (1, 900, 6)],
    ],
)
def test_counts_are_told_apart_by_how_one_sided_they_are(
    times: int, occurrences: int, kind: int
) -> None:
    assert spread_kind(times, occurrences) == kind


def test_start_values_are_probabilities_in_a_sensible_order() -> None:
    assert RATES.shape == (2, LENGTHS, 7)
    assert np.all((RATES > 0) & (RATES < 1))
    assert np.all(np.diff(RATES[..., :3], axis=2) > 0)  # more of the same: surer
    assert np.all(np.diff(RATES[..., 3:], axis=2) < 0)  # a smaller share: less sure
    assert np.all(np.diff(RATES[..., 0], axis=1) > 0)  # a longer context: surer
    assert np.all(RATES[1, :, 0] < RATES[0, :, 0])  # less trust in the second source
    np.testing.assert_allclose(RATES[0, :, 0], alone())


def rate(evidence: Evidence, times: int) -> float:
    source, length, occurrences, _ = evidence
    return float(RATES[source, length_kind(length), spread_kind(times, occurrences)])


def test_later_contexts_share_what_those_before_them_leave() -> None:
    long: Evidence = (0, 5, 1, [(7, 1)])
    short: Evidence = (1, 2, 4, [(7, 2), (8, 2)])
    offers = weigh([long, short], TABLE, 1.0)
    first, second = rate(long, 1), (1 - rate(long, 1)) * rate(short, 2)
    assert [token for token, _, _ in offers] == [7, 8]
    np.testing.assert_allclose([chance for _, chance, _ in offers], [first, second])
    assert [cell for _, _, cell in offers] == [(0, 4, 0), (1, 1, 3)]


FOLLOWERS = st.lists(st.tuples(st.integers(0, 9), st.integers(1, 5)), max_size=6).map(
    lambda followers: sorted(followers, key=lambda follower: -follower[1])
)


@given(
    st.lists(st.tuples(st.integers(0, 1), st.integers(1, 30), FOLLOWERS), max_size=5),
    st.floats(0.005, 1.0),
)
def test_offers_are_distinct_worth_a_node_and_sum_to_at_most_one(
    found: list[tuple[int, int, list[tuple[int, int]]]], reach: float
) -> None:
    evidence: list[Evidence] = [
        (source, length, sum(times for _, times in followers), followers)
        for source, length, followers in found
    ]
    offers = weigh(evidence, TABLE, reach)
    assert len({token for token, _, _ in offers}) == len(offers)
    assert sum(chance for _, chance, _ in offers) <= 1
    assert all(chance * reach >= FLOOR for _, chance, _ in offers)
    everything = weigh(evidence, TABLE, 1e9)
    known = {token for _, _, followers in found for token, _ in followers}
    assert {token for token, _, _ in everything} == known
