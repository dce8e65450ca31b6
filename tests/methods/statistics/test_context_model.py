"""The n-gram model of the target: what it reads, what it offers, and how offers are valued."""

from __future__ import annotations

import math
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tests.drafters.context_models import KINDS

from paceline.core.types import ROOT, Budget, LogitArray, TokenTree
from paceline.methods.statistics.context_model import ContextModel
from paceline.trees.candidates import FLOOR

VOCABULARY = 40

KIND: list[type[ContextModel]] = [ContextModel]


@pytest.fixture(params=KINDS, autouse=True)
def kind(request: pytest.FixtureRequest) -> None:
    """Both kinds, one after the other."""
    KIND[0] = request.param


def model(order: int = 3, capacity: int = 1000) -> ContextModel:
    return KIND[0](order, capacity)


def tokens(model: ContextModel, context: tuple[int, ...]) -> list[int]:
    return [token for token, _, _ in model.offers(context, 1.0)]


def chances(model: ContextModel, context: tuple[int, ...]) -> dict[int, float]:
    return {token: chance for token, chance, _ in model.offers(context, 1.0)}


def rows(*best: list[int]) -> LogitArray:
    """A row per list, with its tokens the most likely, in order."""
    out = np.full((len(best), VOCABULARY), -9.0, np.float32)
    for row, ids in zip(out, best, strict=True):
        row[ids] = 9.0 - 3.0 * np.arange(len(ids))
    return out


def test_what_followed_is_offered_longest_contexts_first() -> None:
    known = model()
    known.read([1, 2, 3, 4, 9, 2, 3, 5, 9, 3, 6], 0, 1.0)
    assert tokens(known, (1, 2, 3)) == [4, 5, 6]
    assert tokens(known, (7, 2, 3)) == [5, 4, 6]  # the later of two is the likelier
    assert tokens(known, (7, 7, 3))[0] == 6
    assert tokens(known, (7, 7, 7)) == []


def test_reading_on_gives_what_reading_at_once_gives() -> None:
    text = np.random.default_rng(0).integers(0, 4, 30).tolist()
    whole, parts = model(), model()
    whole.read(text, 0, 1.0)
    for begin, end in pairwise((0, 0, 1, 2, 3, 11, 12, 30)):
        parts.read(text[:end], begin, 1.0)
    for context in [(a, b, c) for a in range(4) for b in range(4) for c in range(4)]:
        assert set(tokens(whole, context)) == set(tokens(parts, context))


def test_laws_are_learned_at_the_root_and_behind_rejected_nodes() -> None:
    known = model()
    draft = TokenTree(np.array([20, 21, 22]), np.array([ROOT, 0, ROOT]))
    extra = rows([5], [6], [7], [8], [9])  # the last row belongs to nothing that was drafted
    known.recycle([1, 2, 3], draft, extra)
    assert tokens(known, (1, 2, 3))[0] == 5
    assert tokens(known, (2, 3, 20))[0] == 6
    assert tokens(known, (3, 20, 21))[0] == 7
    assert tokens(known, (2, 3, 22))[0] == 8
    assert 9 not in {token for t in range(30) for token in tokens(known, (t,))}


def test_likelier_tokens_of_a_law_are_offered_first_and_valued_higher() -> None:
    known = model()
    known.recycle([1], TokenTree(np.zeros(0, np.int64), np.zeros(0, np.int64)), rows([4, 5, 6]))
    offered = chances(known, (1,))
    assert list(offered)[:3] == [4, 5, 6]
    assert offered[4] > offered[5] > offered[6]


@settings(max_examples=40, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.data(), st.integers(1, 4), st.sampled_from([3, 20, 1000]), st.integers(0, 99))
def test_offers_differ_and_their_chances_sum_to_at_most_one(
    data: st.DataObject, order: int, capacity: int, seed: int
) -> None:
    generator = np.random.default_rng(seed)
    known = model(order, capacity)
    text = data.draw(st.lists(st.integers(0, 4), min_size=1, max_size=30))
    known.read(text, 0, 0.1)
    for _ in range(data.draw(st.integers(0, 3))):
        logits = (4 * generator.normal(size=(3, VOCABULARY))).astype(np.float32)
        known.recycle(text, TokenTree(np.array([1, 2]), np.array([ROOT, 0])), logits)
        known.read([*text, 3, 1], len(text), 1.0)
        known.rates.add((0, 1, 8), True)
    reach = data.draw(st.sampled_from([1.0, 0.3, FLOOR / 2]))
    offered = known.offers(known.tail(text), reach)
    assert len({token for token, _, _ in offered}) == len(offered)
    assert all(0 < chance < 1 for _, chance, _ in offered)
    assert sum(chance for _, chance, _ in offered) <= 1
    left = 1.0
    rates = known.rates.rates
    for _, chance, cell in offered:  # each for the cases in which those before it fail
        assert left * reach >= FLOOR
        assert math.isclose(chance, left * rates[cell])
        left *= 1 - rates[cell]
    if reach < FLOOR:
        assert offered == []


def test_a_full_model_forgets_what_it_read_longest_ago() -> None:
    known = model(order=1, capacity=3)
    known.read([1, 2, 3, 4, 5], 0, 1.0)
    assert [tokens(known, (t,)) for t in (1, 2, 3, 4)] == [[], [3], [4], [5]]


def test_offers_follow_their_hit_rates() -> None:
    known = model()
    known.read([1, 2, 1], 0, 1.0)
    [(_, before, cell)] = known.offers((1,), 1.0)
    for _ in range(50):
        known.rates.add(cell, True)
    assert known.offers((1,), 1.0)[0][1] > before
    assert known.grow([1], Budget(1, 1)).scores[0] > before


@pytest.mark.parametrize("order", [1, 2, 5])
def test_contexts_have_at_most_the_order(order: int) -> None:
    known = model(order)
    assert known.tail([1, 2, 3, 4, 5, 6]) == (2, 3, 4, 5, 6)[-order:]
    assert known.follow((3, 4), 5) == (3, 4, 5)[-order:]
    known.read([1, 2, 3, 4, 5, 6], 0, 1.0)
    assert tokens(known, (1, 2, 3, 4, 5)[-order:])[0] == 6
