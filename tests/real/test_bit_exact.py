"""The numbers behind the identity: logits of one token are equal however its pass was made."""

from __future__ import annotations

import numpy as np
import pytest

from paceline.core import tree as trees
from paceline.core.target import Rows
from paceline.core.types import TokenTree

pytestmark = pytest.mark.real

RNG = np.random.default_rng(3)
TOKENS = RNG.integers(100, 20_000, 48).tolist()


def prompt(length: int, seed: int) -> list[int]:
    return np.random.default_rng(seed).integers(100, 20_000, length).tolist()


def opened(target, tokens):
    cache = target.open()
    target.prefill(cache, tokens)
    return cache


def plain_rows(target, cache, tokens):
    """Logits after each token, one at a time; the cache is left as it was."""
    start = cache.length
    rows = []
    for token in tokens:
        rows.append(target.forward([Rows.draft(cache, [token])])[0].logits[0].copy())
        target.keep(cache, 1, ())
    target.truncate(cache, start)
    return np.array(rows)


@pytest.fixture(scope="module")
def target(loaded):
    assert loaded.target.capabilities.bit_exact
    return loaded.target


@pytest.mark.parametrize("size", [2, 3, 8, 17, 33, 48])
@pytest.mark.parametrize("length", [31, 64, 270])
def test_chain_equals_one_at_a_time(target, size, length):
    cache = opened(target, prompt(length, 1))
    expected = plain_rows(target, cache, TOKENS[:size])
    draft = trees.chain(TOKENS[1:size])
    rows = target.forward([Rows.draft(cache, TOKENS[:1], draft)])[0].logits
    assert np.array_equal(rows, expected)
    target.release(cache)


def test_most_probable_tokens_come_with_the_rows(target):
    cache = opened(target, prompt(40, 1))
    asked = Rows.draft(cache, TOKENS[:1], trees.chain(TOKENS[1:9]), argmax=True)
    [output] = target.forward([asked])
    assert list(output.argmax) == output.logits.argmax(axis=1).tolist()
    target.release(cache)


TREE = TokenTree(np.array([11, 12, 13, 14, 15, 16, 17]), np.array([-1, -1, 0, 0, 2, 1, 5]))


@pytest.mark.parametrize("length", [63, 270])
def test_tree_nodes_equal_their_paths_alone_and_in_company(target, length):
    cache = opened(target, prompt(length, 1))
    others = [opened(target, prompt(n, seed)) for n, seed in ((5, 2), (130, 3), (700, 4))]
    drafts = [trees.EMPTY, trees.chain(TOKENS[:5]), TREE]
    expected = {}
    for path in trees.leaf_paths(TREE):
        rows = plain_rows(target, cache, [9, *TREE.tokens[list(path)].tolist()])
        for node, row in zip((-1, *path), rows, strict=True):
            expected[node] = row
    alone = target.forward([Rows.draft(cache, [9], TREE)])[0].logits.copy()
    passes = [Rows.draft(c, [9], d) for c, d in zip(others, drafts, strict=True)]
    company = target.forward([passes[0], Rows.draft(cache, [9], TREE), *passes[1:]])[1].logits
    for node, row in expected.items():
        assert np.array_equal(alone[node + 1], row)
        assert np.array_equal(company[node + 1], row)
    for each in (cache, *others):
        target.release(each)


@pytest.mark.parametrize("path", [(), (0,), (1, 5), (0, 2, 4), (0, 3)])
def test_keeping_a_path_equals_recomputing_it(target, path):
    """T4: zero, partial and full acceptance, node order not that of the path."""
    tokens = prompt(60, 1)
    cache = opened(target, tokens)
    target.forward([Rows.draft(cache, [9], TREE)])
    target.keep(cache, 1, path)
    kept = [*tokens, 9, *TREE.tokens[list(path)].tolist()]
    fresh = opened(target, kept)
    assert cache.length == fresh.length == len(kept)
    a, b = target.forward([Rows.draft(cache, [77]), Rows.draft(fresh, [77])])
    assert np.array_equal(a.logits, b.logits)
    target.release(cache)
    target.release(fresh)


def test_prefill_does_not_depend_on_chunks_or_pending(target):
    tokens = prompt(600, 5)
    whole = opened(target, tokens)
    pieces = target.open()
    for start in (0, 1, 38, 300, 599):
        end = {0: 1, 1: 38, 38: 300, 300: 599, 599: 600}[start]
        target.prefill(pieces, tokens[start:end])
    late = opened(target, tokens[:590])
    a, b = (target.forward([Rows.draft(c, [7])])[0].logits.copy() for c in (whole, pieces))
    c = target.forward([Rows.draft(late, [*tokens[590:], 7])])[0].logits
    assert np.array_equal(a, b)
    assert np.array_equal(a, c)
    for each in (whole, pieces, late):
        target.release(each)


def test_fork_and_truncate(target):
    cache = opened(target, prompt(70, 6))
    expected = plain_rows(target, cache, TOKENS[:4])
    other = target.fork(cache)
    plain = plain_rows(target, other, [5, 6, 7])  # writes into what was shared
    assert np.array_equal(plain_rows(target, cache, TOKENS[:4]), expected)
    assert np.array_equal(plain_rows(target, other, [5, 6, 7]), plain)
    target.release(cache)
    assert np.array_equal(plain_rows(target, other, TOKENS[:4]), expected)
    target.release(other)


def test_hidden_states_give_the_logits(target, loaded):
    cache = opened(target, prompt(20, 7))
    output = target.forward([Rows.draft(cache, [9], TREE, hidden=True)])[0]
    assert output.hidden is not None
    assert output.hidden.shape == (8, target.capabilities.hidden_size)
    head = loaded.source.weights()["embed"]
    close = output.hidden @ head.T
    # Where head and hidden states are rounded, the order of the best must survive.
    agreement = (close.argmax(axis=1) == output.logits.argmax(axis=1)).mean()
    assert agreement == 1 if target.capabilities.precision == "fp32" else agreement >= 0.5
    target.release(cache)


def test_features_are_the_same_in_prefill_and_in_a_tree(target):
    tokens = prompt(40, 8)
    cache, other = opened(target, tokens[:30]), target.open()
    before = target.prefill(other, tokens[:-1], True)
    output = target.forward([Rows.draft(cache, tokens[30:], TREE, hidden=True, features=True)])[0]
    assert output.features.shape == (10 + len(TREE), 4 * target.capabilities.hidden_size)
    assert np.array_equal(output.features[:9], before[30:])
    assert np.array_equal(output.features[9:, -output.hidden.shape[1] :], output.hidden)
    target.release(cache)
    target.release(other)


def test_another_path_is_another_function(target):
    """Negative control: what was kept shows in every row."""
    tokens, rows = prompt(60, 1), []
    for path in ((1, 5), (0, 2)):
        cache = opened(target, tokens)
        target.forward([Rows.draft(cache, [9], TREE)])
        target.keep(cache, 1, path)
        rows.append(target.forward([Rows.draft(cache, [77])])[0].logits[0].copy())
        target.release(cache)
    assert np.abs(rows[0] - rows[1]).max() > 1e-3
