"""One chain from two drafters: what is learned about both, and what stands behind its end."""

from __future__ import annotations

import numpy as np
import pytest

from paceline.drafters.hints import Heeding, followed
from paceline.networks.hints import CELLS, HINTED, KINDS, OWN, Hints
from paceline.networks.runner import Chain, Grown
from paceline.types import ROOT, TokenTree

RATES = np.zeros((3, CELLS))


def draft(tokens: list[int], scores: list[float], parents: list[int] | None = None) -> TokenTree:
    above = list(range(-1, len(tokens) - 1)) if parents is None else parents
    return TokenTree(np.array(tokens), np.array(above), None, "other", np.array(scores))


def cell(own: float, hint: float | None) -> int:
    kind = 0 if hint is None else 1 + int(np.searchsorted(HINTED, hint, side="right"))
    return int(np.searchsorted(OWN, own, side="right")) * KINDS + kind


def hinted(heeding: Heeding, other: TokenTree, id: int = 1) -> Hints:
    heeding.give(id, other)
    grown = heeding.hinted(Grown(None, np.zeros((1, 0), np.float32), [3]), id)
    assert grown.hints is not None
    assert heeding.hinted(grown, id) is grown  # for one step
    return grown.hints


def test_hints_are_the_path_of_first_children_and_chances_given_those_above() -> None:
    tree = draft([4, 5, 6, 7], [0.5, 0.3, 0.4, 0.1], [ROOT, ROOT, 0, 2])
    hints = hinted(Heeding(), tree)
    assert hints.tokens == [4, 6, 7]
    assert hints.chances == pytest.approx([0.5, 0.8, 0.25])
    assert hinted(Heeding(), draft([], [])).tokens == []


def test_first_guesses_grow_with_both_chances() -> None:
    agreed, own, hint = Heeding().rates.rates.reshape(3, -1, KINDS)
    assert (np.diff(agreed, axis=0) > 0).all()
    assert (np.diff(agreed, axis=1) > 0).all()
    assert (np.diff(own, axis=0) > 0).all()
    assert (np.diff(own, axis=1) < 0).all()
    assert (np.diff(hint, axis=1) > 0).all()
    assert (agreed >= np.maximum(own, hint) - 1e-12).all()
    assert ((own + hint) <= 1).all()


def test_rates_follow_who_was_right_up_to_the_first_miss() -> None:
    heeding = Heeding()
    hints = hinted(heeding, draft([4, 9, 6], [0.5, 0.4, 0.3]))
    own = [4, 5, 6, 7]
    cells = [cell(0.5, 0.5), cell(0.7, 0.8), cell(0.3, None), cell(0.3, None)]
    before = heeding.rates.rates
    heeding.note(
        1, hints, Chain(np.array([4, 5, 6, 7]), np.ones(4), np.array(own), np.array(cells))
    )
    heeding.learn(1, [4, 9])
    after = heeding.rates.rates
    changed = {(int(row), int(at)) for row, at in np.argwhere(after != before)}
    assert changed == {(0, cells[0]), (1, cells[1]), (2, cells[1])}
    assert after[0, cells[0]] > before[0, cells[0]]
    assert after[1, cells[1]] < before[1, cells[1]]
    assert after[2, cells[1]] > before[2, cells[1]]
    np.testing.assert_array_equal(hints.rates, after)  # the next chain reads what was learned
    heeding.learn(1, [4, 5])  # is over
    np.testing.assert_array_equal(heeding.rates.rates, after)
    heeding.reset()
    np.testing.assert_array_equal(heeding.rates.rates, before)


def test_a_hint_that_was_taken_tells_of_both() -> None:
    heeding = Heeding()
    hints = hinted(heeding, draft([4], [0.5]))
    at = cell(0.2, 0.5)
    before = heeding.rates.rates
    heeding.note(1, hints, Chain(np.array([4]), np.ones(1), np.array([8]), np.array([at])))
    heeding.learn(1, [8])
    after = heeding.rates.rates
    assert after[1, at] > before[1, at]
    assert after[2, at] < before[2, at]


def test_chains_without_hints_and_closed_sequences_are_not_learned_from() -> None:
    heeding = Heeding()
    hints = hinted(heeding, draft([4], [0.5]))
    before = heeding.rates.rates
    heeding.note(1, hints, Chain(np.array([4]), np.ones(1)))  # of a runner that heeds none
    heeding.learn(1, [4])
    heeding.note(2, hints, Chain(np.array([4]), np.ones(1), np.array([4]), np.array([3])))
    heeding.close(2)
    heeding.learn(2, [4])
    np.testing.assert_array_equal(heeding.rates.rates, before)
    heeding.give(3, draft([4], [0.5]))
    heeding.close(3)
    grown = Grown(None, np.zeros((1, 0), np.float32), [3])
    assert heeding.hinted(grown, 3) is grown


@pytest.mark.parametrize(
    ("drafted", "most", "expected"),
    [
        ([4, 5], 9, [4, 5, 6, 7]),
        ([4, 5], 3, [4, 5, 6]),
        ([4, 5], 2, [4, 5]),
        ([4, 8], 9, [4, 8]),
        ([4, 5, 6, 7, 1], 9, [4, 5, 6, 7, 1]),
        ([], 9, [4, 5, 6, 7]),
    ],
)
def test_a_chain_that_was_hinted_throughout_goes_on_as_hinted(
    drafted: list[int], most: int, expected: list[int]
) -> None:
    hints = Hints([4, 5, 6, 7], [0.9, 0.8, 0.7, 0.6], RATES)
    chances = np.full(len(drafted), 0.5)
    tokens, found = followed(hints, np.array(drafted, np.int64), chances, most)
    assert tokens.tolist() == expected
    assert found.tolist() == [*chances, *[0.9, 0.8, 0.7, 0.6][len(drafted) : len(expected)]]
