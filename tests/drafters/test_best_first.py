"""Growth by best first against enumeration of all paths; learning against a count by hand."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from paceline.core import tree as trees
from paceline.core.types import Budget
from paceline.policy.acceptance import HitRates
from paceline.trees.candidates import CandidateTree, Offer

Path = tuple[int, ...]


def model(seed: int) -> dict[Path, list[Offer]]:
    """Offers after every path of up to three tokens: up to three tokens of distinct chances."""
    generator = np.random.default_rng(seed)
    known: dict[Path, list[Offer]] = {}
    level: list[Path] = [()]
    for _ in range(4):
        following: list[Path] = []
        for path in level:
            chances = generator.dirichlet(np.ones(4))[: generator.integers(0, 4)]
            known[path] = [(t, float(c), (len(path), t)) for t, c in enumerate(chances)]
            following += [(*path, token) for token in range(len(chances))]
        level = following
    return known | {path: [] for path in level}


def grow(known: dict[Path, list[Offer]], budget: Budget) -> CandidateTree:
    return CandidateTree.grow(
        (), budget, lambda path, _: known[path], lambda path, token: (*path, token)
    )


def enumerated(known: dict[Path, list[Offer]], depth: int) -> dict[Path, float]:
    """The probability of every path."""
    scores: dict[Path, float] = {(): 1.0}
    for path in sorted(known, key=len):
        if path in scores and len(path) < depth:
            for token, chance, _ in known[path]:
                scores[*path, token] = scores[path] * chance
    del scores[()]
    return scores


@settings(max_examples=60)
@given(st.integers(0, 10_000), st.integers(0, 40), st.integers(0, 5))
def test_the_draft_is_the_most_probable_of_all_paths(seed: int, nodes: int, depth: int) -> None:
    known = model(seed)
    draft = grow(known, Budget(nodes, depth)).tree("mine")
    expected = enumerated(known, depth)
    trees.validate(draft)
    assert draft.scores is not None
    assert draft.source == "mine"
    paths = [trees.path_to(draft, node) for node in range(len(draft))]
    texts = [tuple(draft.tokens[list(path)].tolist()) for path in paths]
    ranked = sorted(expected, key=lambda path: -expected[path])[:nodes]
    assert texts == ranked
    np.testing.assert_allclose(draft.scores, [expected[text] for text in texts])


def test_equal_scores_keep_the_order_of_the_offers() -> None:
    known: dict[Path, list[Offer]] = {(): [(t, 0.25, (0,)) for t in (7, 3, 5)]}
    guess = CandidateTree.grow(
        (), Budget(3, 1), lambda path, _: known[path], lambda path, token: ()
    )
    assert guess.tokens == [7, 3, 5]


def test_what_cannot_be_drafted_is_not_asked_for() -> None:
    asked: list[Path] = []

    def offers(path: Path, reach: float) -> list[Offer]:
        asked.append(path)
        return [(1, 0.5, (0,)), (2, 0.4, (0,))]

    def follow(path: Path, token: int) -> Path:
        return (*path, token)

    assert CandidateTree.grow((), Budget(0, 3), offers, follow).tokens == []
    assert CandidateTree.grow((), Budget(3, 0), offers, follow).tokens == []
    assert asked == []
    CandidateTree.grow((), Budget(2, 1), offers, follow)
    assert asked == [()]  # neither below the depth
    CandidateTree.grow((), Budget(2, 2), offers, follow)
    assert asked[1:] == [(), (1,)]  # nor behind the last node


def counted(
    guess: CandidateTree, committed: list[int]
) -> dict[tuple[int, ...], tuple[float, float]]:
    """Hits and trials per cell, without prior."""
    rates = HitRates(np.zeros((4, 3)), weight=0.0)
    guess.learn(committed, rates)
    numbers = (
        (cell, mean.total, mean.weight)
        for cell, mean in zip(rates.cells, rates._means, strict=True)
    )
    return {cell: (round(hits), round(trials)) for cell, hits, trials in numbers if trials}


def test_hit_rates_are_kept_by_cell_and_in_one_row() -> None:
    rates = HitRates(np.arange(24.0).reshape(2, 3, 4) / 24, weight=2.0)
    rates.add((1, 2, 0), True)
    rates.count(rates.cells.index((1, 0, 3)), False)
    expected = np.arange(24.0).reshape(2, 3, 4) / 24
    expected[1, 2, 0] = (0.995 * 2 * 20 / 24 + 1) / (0.995 * 2 + 1)
    expected[1, 0, 3] *= 0.995 * 2 / (0.995 * 2 + 1)
    np.testing.assert_allclose(rates.rates, expected)
    np.testing.assert_array_equal(rates.rates.ravel(), rates.flat)


KNOWN: dict[Path, list[Offer]] = {
    (): [(0, 0.5, (0, 0)), (1, 0.3, (0, 1)), (2, 0.1, (0, 2))],
    (0,): [(0, 0.4, (1, 0)), (2, 0.3, (1, 2))],
    (1,): [(1, 0.9, (1, 1))],
    (2,): [],
    (0, 0): [],
    (0, 2): [],
    (1, 1): [],
}


@pytest.mark.parametrize(
    ("committed", "expected"),
    [
        ([0], {(0, 0): (1, 1)}),  # those behind the hit were not put to the test
        ([1], {(0, 0): (0, 1), (0, 1): (1, 1)}),
        ([5], {(0, 0): (0, 1), (0, 1): (0, 1), (0, 2): (0, 1)}),
        ([5, 0], {(0, 0): (0, 1), (0, 1): (0, 1), (0, 2): (0, 1)}),  # what follows a miss is moot
        ([0, 2, 1], {(0, 0): (1, 1), (1, 0): (0, 1), (1, 2): (1, 1)}),
        ([], {}),
    ],
)
def test_offers_are_counted_along_the_committed_tokens(
    committed: list[int], expected: dict[tuple[int, int], tuple[int, int]]
) -> None:
    guess = grow(KNOWN, Budget(9, 3))
    assert len(guess.tokens) == 6
    assert counted(guess, committed) == expected


def test_offers_that_found_no_place_are_counted_too() -> None:
    """The controller may ask for little; what would have followed is known all the same."""
    assert counted(grow(KNOWN, Budget(1, 3)), [5]) == counted(grow(KNOWN, Budget(9, 3)), [5])


def test_a_chain_multiplies_chances_and_counts_up_to_the_first_miss() -> None:
    guess = CandidateTree.chain([(4, 0.5, (0, 0)), (5, 0.5, (1, 0)), (6, 0.8, (2, 0))])
    draft = guess.tree("chain")
    assert trees.is_chain(draft)
    assert draft.tokens.tolist() == [4, 5, 6]
    np.testing.assert_allclose(draft.scores, [0.5, 0.25, 0.2])
    assert guess.score == pytest.approx(0.95)
    assert counted(guess, [4, 9, 6]) == {(0, 0): (1, 1), (1, 0): (0, 1)}
    assert CandidateTree.chain([]).tree("chain").tokens.tolist() == []
