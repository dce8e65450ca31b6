"""Tree search: visits add up, the most visited nodes are kept, and it tends to the most likely."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from paceline.core.types import ROOT, Budget
from paceline.drafters.statistics.aded import Searched
from paceline.trees.candidates import CandidateTree, Offer

Place = tuple[int, ...]


def offers_of(
    table: dict[Place, list[float]],
) -> tuple[list[Place], Callable[[Place, float], list[Offer]]]:
    """Offers by path: token i with the i-th chance; a note of the places asked for."""
    asked: list[Place] = []

    def offers(place: Place, reach: float) -> list[Offer]:
        asked.append(place)
        return [(i, chance, (0,)) for i, chance in enumerate(table.get(place, []))]

    return asked, offers


def follow(place: Place, token: int) -> Place:
    return (*place, token)


def search(table: dict[Place, list[float]], budget: Budget, iterations: int) -> Searched:
    _, offers = offers_of(table)
    return Searched.search((), budget, offers, follow, iterations)


TABLE: dict[Place, list[float]] = {
    (): [0.2, 0.6, 0.1],
    (0,): [0.9],
    (1,): [0.3, 0.5],
    (1, 1): [0.7, 0.1],
    (2,): [0.5],
}

CHANCES = st.lists(st.floats(0.01, 0.3), max_size=3)
TABLES = st.fixed_dictionaries(
    {(): CHANCES} | {(a,): CHANCES for a in range(3)} | {(0, b): CHANCES for b in range(3)}
)


@settings(max_examples=60, deadline=None)
@given(TABLES, st.integers(0, 8), st.integers(0, 4), st.integers(0, 40))
def test_visits_add_up_and_the_budget_holds(
    table: dict[Place, list[float]], nodes: int, depth: int, iterations: int
) -> None:
    guess = search(table, Budget(100, depth), iterations)
    below = [0] * len(guess.tokens)
    top = 0
    for node, parent in enumerate(guess.parents):
        assert parent < node
        assert guess.visits[node] >= 1
        if parent == ROOT:
            top += guess.visits[node]
        else:
            below[parent] += guess.visits[node]
            assert guess.scores[node] <= guess.scores[parent]
    if depth and table[()]:
        assert top == iterations
    assert all(inner in (0, own) for inner, own in zip(below, guess.visits, strict=True))
    few = search(table, Budget(nodes, depth), iterations)
    if nodes:  # the most visited ones of all
        assert few.visits == guess.visits[:nodes]
        assert few.visits == sorted(few.visits, reverse=True)
    else:
        assert few.tokens == []


def test_scores_are_products_of_chances_along_the_path() -> None:
    guess = search(TABLE, Budget(20, 3), 200)
    paths: list[Place] = []
    for parent, token, score in zip(guess.parents, guess.tokens, guess.scores, strict=True):
        above = () if parent == ROOT else paths[parent]
        paths.append((*above, token))
        expected = TABLE[above][token] * (1.0 if parent == ROOT else guess.scores[parent])
        assert score == pytest.approx(expected)
    assert set(paths) == {(0,), (1,), (2,), (0, 0), (1, 0), (1, 1), (1, 1, 0), (1, 1, 1), (2, 0)}


def test_each_place_is_asked_once() -> None:
    asked, offers = offers_of(TABLE)
    Searched.search((), Budget(5, 3), offers, follow, 50)
    assert len(asked) == len(set(asked))


def test_long_searches_prefer_what_is_likely() -> None:
    """With the most likely node first and the best path among the first nodes."""
    guess = search(TABLE, Budget(3, 3), 150)
    _, offers = offers_of(TABLE)
    best = CandidateTree.grow((), Budget(3, 3), offers, follow)
    assert guess.tokens[0] == best.tokens[0] == 1
    assert sum(guess.scores) <= sum(best.scores)
    assert sum(guess.scores) > 0.8 * sum(best.scores)


def test_the_first_trial_takes_the_most_probable() -> None:
    assert search(TABLE, Budget(3, 3), 1).tokens == [1, 1, 0]
