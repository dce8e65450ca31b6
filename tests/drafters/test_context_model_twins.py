"""The n-gram model in C++ is the one in Python to the last bit, and gives its memory back."""

from __future__ import annotations

import copy
import os
from itertools import product
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.drafters.context_models import KINDS, PlainContextModel

from paceline.core.types import ROOT, Budget, LogitArray, TokenTree
from paceline.methods.statistics.context_model import ContextModel

VOCABULARY = 5
PAGES = Path("/proc/self/statm")


def contexts(order: int) -> list[tuple[int, ...]]:
    """All that there are."""
    return [c for n in range(1, order + 1) for c in product(range(VOCABULARY), repeat=n)]


def seen(model: ContextModel, order: int, budget: Budget, text: list[int]) -> list[object]:
    """Everything: laws, offers, and what is drafted behind a text and learned of it."""
    guess = model.grow(text, budget)
    draft = guess.tree("some")
    guess.learn([*draft.tokens[:1].tolist(), 1, 2, 0], model.rates)
    return [
        [model.look(context) for context in contexts(order)],
        [model.offers(context, reach) for context in contexts(order) for reach in (1.0, 0.2)],
        *(draft.tokens.tolist(), draft.parents.tolist()),
        *(None if draft.scores is None else draft.scores.tolist(), draft.source),
        *(guess.tokens, guess.parents, guess.scores, guess.score),
        model.rates.table,
    ]


@st.composite
def trees(draw: st.DrawFn) -> TokenTree:
    parents = [draw(st.integers(ROOT, node - 1)) for node in range(draw(st.integers(0, 5)))]
    tokens = [draw(st.integers(0, VOCABULARY - 1)) for _ in parents]
    return TokenTree(np.array(tokens, np.int64), np.array(parents, np.int64))


TEXTS = st.lists(st.integers(0, VOCABULARY - 1), min_size=1, max_size=20)
STEPS = st.lists(
    st.tuples(
        TEXTS,
        st.integers(0, 20),
        st.sampled_from([0.1, 0.3, 1.0]),
        trees(),
        st.sampled_from([0, 1, 4]),  # digits: coarse logits are often equal
    ),
    max_size=6,
)


def rows(count: int, digits: int, seed: int, width: int = VOCABULARY) -> LogitArray:
    logits = 3 * np.random.default_rng(seed).normal(size=(count, width))
    return logits.round(digits).astype(np.float32)


@settings(max_examples=80)
@given(
    st.integers(1, 4),
    st.sampled_from([1, 3, 17, 1000]),
    STEPS,
    st.integers(0, 99),
    st.integers(0, 12),
    st.integers(0, 5),
)
def test_both_know_and_draft_the_same_after_every_step(
    order: int,
    capacity: int,
    steps: list[tuple[list[int], int, float, TokenTree, int]],
    seed: int,
    nodes: int,
    depth: int,
) -> None:
    pair = PlainContextModel(order, capacity), ContextModel(order, capacity)
    for step, (text, begin, weight, draft, digits) in enumerate(steps):
        for model in pair:
            model.read(text, min(begin, len(text)), weight)
            model.recycle(text, draft, rows(len(draft) + 2, digits, seed + step))
        plain, native = (seen(model, order, Budget(nodes, depth), text) for model in pair)
        assert native == plain


@settings(max_examples=20)
@given(st.integers(0, 99), st.integers(0, 30), st.integers(0, 8))
def test_both_draft_alike_from_laws_over_many_tokens(seed: int, nodes: int, depth: int) -> None:
    pair = PlainContextModel(3, 300), ContextModel(3, 300)
    text = np.random.default_rng(seed).zipf(1.3, 200).clip(max=59).tolist()
    draft = TokenTree(np.array(text[:9]), np.array([ROOT, ROOT, 0, 0, 1, 2, 3, 3, 7]))
    drafts = []
    for model in pair:
        model.read(text, 0, 0.1)
        for step in range(8):
            model.recycle(text[: 100 + step], draft, rows(10, 4, step, width=60))
        drafts.append(model.grow(text[:104], Budget(nodes, depth)))
    plain, native = drafts
    assert native.tokens == plain.tokens
    assert native.parents == plain.parents
    assert native.scores == plain.scores
    assert bool(native.tokens) == bool(nodes and depth)


@pytest.mark.parametrize("kind", KINDS)
def test_one_token_more_is_seen(kind: type[ContextModel]) -> None:
    """The comparisons above can fail."""
    first, second = kind(2, 100), kind(2, 100)
    for model in (first, second):
        model.read([1, 2, 3, 1, 2], 0, 1.0)
    assert seen(first, 2, Budget(4, 2), [1, 2]) == seen(second, 2, Budget(4, 2), [1, 2])
    second.read([1, 2, 4], 2, 1.0)
    assert seen(first, 2, Budget(4, 2), [1, 2]) != seen(second, 2, Budget(4, 2), [1, 2])


@pytest.mark.parametrize("kind", KINDS)
def test_a_copy_learns_by_itself(kind: type[ContextModel]) -> None:
    first = kind(2, 100)
    first.read([1, 2, 3, 1, 2], 0, 1.0)
    before = seen(copy.deepcopy(first), 2, Budget(4, 2), [1, 2])
    second = copy.deepcopy(first)
    second.read([1, 2, 4, 1, 2, 4], 0, 1.0)
    second.grow([1, 2], Budget(1, 1)).learn([4], second.rates)
    assert seen(first, 2, Budget(4, 2), [1, 2]) == before


def test_logits_in_any_order_are_read() -> None:
    draft = TokenTree(np.array([1]), np.array([ROOT]))
    known = ContextModel(2, 100), ContextModel(2, 100)
    logits = rows(2, 4, seed=0)
    known[0].recycle([3], draft, logits)
    known[1].recycle([3], draft, np.asfortranarray(logits.astype(np.float64)))
    assert known[0].look((3, 1)) == known[1].look((3, 1)) is not None


@pytest.mark.skipif(not PAGES.exists(), reason="needs Linux's figures of memory")
def test_memory_is_little_and_given_back() -> None:
    text = np.random.default_rng(0).integers(0, 40_000, 100_000).tolist()
    page = os.sysconf("SC_PAGE_SIZE")

    def resident() -> int:
        return int(PAGES.read_text().split()[1]) * page

    def built() -> ContextModel:
        model = ContextModel(2, 1 << 16)
        model.read(text, 0, 1.0)
        return model

    built()
    before = resident()
    kept = [built()]
    assert resident() - before < 250 * (1 << 16)
    before = resident()
    for _ in range(6):
        built()
    assert resident() - before < 3 * 128 * (1 << 16)  # six take at least 128 bytes per context
    assert kept[0].look(tuple(text[-2:])) is None  # nothing followed the end
