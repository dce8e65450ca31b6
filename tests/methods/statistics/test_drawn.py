"""Drawn drafts: their law, where they grow, and what is learned about acceptance."""

from __future__ import annotations

from collections import Counter

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from paceline.core import tree as trees
from paceline.core.types import ROOT, Budget, TokenTree, Verdict
from paceline.methods.statistics.stand import DrawnTree, Lots, acceptance_rates
from paceline.proof.compare import goodness_of_fit
from paceline.proof.oracle import enumerate_distribution
from paceline.sampling.randomness import KeyedRandomness, Randomness
from paceline.trees.candidates import Offer

Place = tuple[int, ...]
POSITION = 5

OFFERS: dict[Place, list[float]] = {
    (): [0.3, 0.2, 0.1],
    (0,): [0.6, 0.3],
    (1,): [0.2],
    (0, 1): [0.1, 0.8],
}


def draw(
    randomness: Randomness,
    budget: Budget,
    lots: Lots = "noise",
    table: dict[Place, list[float]] = OFFERS,
) -> DrawnTree:
    def offers(place: Place, reach: float) -> list[Offer]:
        assert 0 < reach <= 1
        return [(token, chance, (0,)) for token, chance in enumerate(table.get(place, []))]

    return DrawnTree.draw(
        (),
        budget,
        offers,
        lambda place, token: (*place, token),
        8,
        POSITION,
        randomness,
        acceptance_rates(),
        lots,
    )


def shape(tree: TokenTree) -> tuple[int, ...]:
    """Tokens and parents as one tuple."""
    return (*tree.tokens.tolist(), -9, *tree.parents.tolist())


CHANCES = st.lists(st.floats(0.02, 0.3), max_size=3)


@settings(max_examples=80)
@given(
    st.fixed_dictionaries({(): CHANCES, (0,): CHANCES, (1,): CHANCES, (0, 0): CHANCES}),
    st.integers(0, 9),
    st.integers(0, 4),
    st.sampled_from(["noise", "one-by-one"]),
    st.integers(0, 999),
)
def test_drafts_are_sound_and_report_the_rows_they_were_drawn_from(
    table: dict[Place, list[float]], nodes: int, depth: int, lots: Lots, seed: int
) -> None:
    draft = draw(KeyedRandomness(seed), Budget(nodes, depth), lots, table).tree("name")
    trees.validate(draft)
    assert len(draft) <= nodes
    assert trees.depths(draft).max(initial=0) <= depth
    assert draft.source == "name"
    if not len(draft):
        assert not (nodes and depth and table[()])
        return
    assert draft.sampling is not None
    assert draft.sampling.kind == "without_replacement"
    assert set(draft.sampling.rows) == set(draft.parents.tolist())
    for parent, below in trees.children(draft).items():
        place = tuple(draft.tokens[list(trees.path_to(draft, parent))].tolist())
        chances = np.array(table[place])
        row = draft.sampling.rows[parent]
        np.testing.assert_allclose(row.probs, chances / chances.sum())
        assert row.ids is not None
        assert row.ids.tolist() == list(range(len(chances)))
        tokens = draft.tokens[below].tolist()
        assert len(set(tokens)) == len(tokens)


@pytest.mark.parametrize("nodes", [1, 2, 3])
def test_noise_and_draws_one_by_one_have_the_same_law(nodes: int) -> None:
    budget = Budget(nodes, 2)
    joint = enumerate_distribution(lambda r: shape(draw(r, budget, "one-by-one").tree("")))
    counts = Counter(
        shape(draw(KeyedRandomness(seed), budget, "noise").tree("")) for seed in range(4000)
    )
    assert goodness_of_fit(counts, joint) > 1e-3
    # The test can tell: noise of one seed is not the law.
    fixed = Counter({shape(draw(KeyedRandomness(1), budget, "noise").tree("")): 4000})
    assert goodness_of_fit(fixed, joint) < 1e-9 or len(joint) == 1


def test_rounds_at_different_positions_draw_differently() -> None:
    randomness = KeyedRandomness(3)
    table = {(): [0.1] * 8}

    def first(position: int) -> int:
        offers = [(token, chance, (0,)) for token, chance in enumerate(table[()])]
        guess = DrawnTree.draw(
            0,
            Budget(1, 1),
            lambda place, reach: offers,
            lambda place, token: token,
            8,
            position,
            randomness,
            acceptance_rates(),
            "noise",
        )
        return int(guess.tree("").tokens[0])

    assert len({first(position) for position in range(1, 30)}) > 3
    assert first(4) == first(4)


@pytest.mark.parametrize("stood", [False, True])
def test_drafts_grow_where_acceptance_was_most_probable(stood: bool) -> None:
    """Below the first child if first children stand, else beside it."""
    table = {(): [0.5, 0.4], (0,): [0.5, 0.4], (1,): [0.5, 0.4]}
    accepted = acceptance_rates()
    for _ in range(300):
        accepted.add((0, 3), stood)
    guess = DrawnTree.draw(
        (),
        Budget(2, 2),
        lambda place, reach: [(t, c, (0,)) for t, c in enumerate(table.get(place, []))],
        lambda place, token: (*place, token),
        8,
        POSITION,
        KeyedRandomness(0),
        accepted,
        "noise",
    )
    assert guess.tree("").parents.tolist() == ([ROOT, 0] if stood else [ROOT, ROOT])


def test_acceptance_is_counted_along_the_path() -> None:
    guess = draw(KeyedRandomness(2), Budget(9, 3))
    draft = guess.tree("")
    below = trees.children(draft)
    assert len(below[ROOT]) == 3
    child = below[ROOT][1]
    accepted = acceptance_rates()
    before = accepted.rates
    guess.settle(Verdict((child,), 7), accepted)
    change = accepted.rates - before
    assert change[0, 2] < 0  # the first was tried and rejected: the chances above sum to 0.6
    assert change[1, 2] > 0  # the second stood
    assert change[2, 2] == 0  # the third was not tried
    tried = len(below.get(child, []))
    assert np.count_nonzero(change) == 2 + min(tried, 3)  # children of the second: all rejected
    assert np.all(change[:, [0, 1, 3]] <= 0)
