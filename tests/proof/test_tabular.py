"""The stand-in target keeps the contract and refuses misuse."""

from __future__ import annotations

import numpy as np
import pytest

from paceline.core import tree as trees
from paceline.core.target import Rows
from paceline.core.types import ROOT, SamplingParams, TokenTree
from paceline.errors import OutOfMemory
from paceline.proof.tabular import TabularDistributions, TabularModel, TabularTarget, processed

MODEL = TabularModel(5, 3, seed=4)


def branching() -> TokenTree:
    return TokenTree(np.array([1, 2, 3, 4]), np.array([ROOT, ROOT, 0, 2]))


def test_rows_are_fixed_functions_of_the_last_tokens() -> None:
    again = TabularModel(5, 3, seed=4)
    assert np.array_equal(MODEL.logits((0, 1, 2, 3)), again.logits((4, 1, 2, 3)))
    assert not np.array_equal(MODEL.logits((1, 2, 3)), MODEL.logits((2, 3)))
    assert MODEL.logits(()).dtype == np.float32
    assert MODEL.distribution((1,)).probs.sum() == pytest.approx(1, abs=1e-15)


def test_unprocessed_law_is_the_sampler_at_temperature_one() -> None:
    plain = processed(MODEL.logits, SamplingParams(temperature=1), (0,))
    assert np.allclose(plain((0, 3)).probs, MODEL.distribution((0, 3)).probs, atol=1e-15, rtol=0)


def test_laws_follow_the_path_of_each_node() -> None:
    distributions = TabularDistributions(MODEL.distribution, (0, 1), branching())
    assert distributions.position == 2
    assert np.array_equal(distributions.distribution(ROOT).probs, MODEL.distribution((0, 1)).probs)
    assert np.array_equal(
        distributions.distribution(3).probs, MODEL.distribution((0, 1, 1, 3, 4)).probs
    )


def test_forward_gives_a_row_per_node() -> None:
    target = TabularTarget(MODEL.logits, 5)
    cache = target.open()
    target.prefill(cache, [0, 1])
    [output] = target.forward([Rows.draft(cache, [2], branching())])
    contexts = [(2,), (2, 1), (2, 2), (2, 1, 3), (2, 1, 3, 4)]
    expected = np.stack([MODEL.logits((0, 1, *rest)) for rest in contexts])
    assert np.array_equal(output.logits, expected)
    assert cache.length == 2
    target.keep(cache, 1, (0, 2))
    assert cache.tokens == [0, 1, 2, 1, 3]


def test_several_pending_tokens_and_none_kept() -> None:
    target = TabularTarget(MODEL.logits, 5)
    cache = target.open()
    [output] = target.forward([Rows.draft(cache, [2, 3], trees.chain([4]))])
    assert np.array_equal(output.logits[1], MODEL.logits((2, 3, 4)))
    target.keep(cache, 2, ())
    assert cache.tokens == [2, 3]


def test_earlier_logits_are_overwritten() -> None:
    target = TabularTarget(MODEL.logits, 5)
    cache = target.open()
    [first] = target.forward([Rows.draft(cache, [2])])
    target.keep(cache, 1, ())
    target.forward([Rows.draft(cache, [3])])
    assert np.isnan(first.logits).all()
    assert np.isfinite(MODEL.logits((2,))).all()


def test_fork_truncate_release() -> None:
    target = TabularTarget(MODEL.logits, 5)
    cache = target.open()
    target.prefill(cache, [0, 1, 2])
    copy = target.fork(cache)
    target.truncate(cache, 1)
    assert (cache.tokens, copy.tokens) == ([0], [0, 1, 2])
    target.release(cache)
    with pytest.raises(ValueError, match="released"):
        target.forward([Rows.draft(cache, [1])])
    with pytest.raises(ValueError, match="released"):
        target.release(cache)
    with pytest.raises(ValueError, match="cut"):
        target.truncate(copy, 4)


def test_misuse_is_refused() -> None:
    target = TabularTarget(MODEL.logits, 5, max_context=4)
    cache = target.open()
    with pytest.raises(ValueError, match="without a forward"):
        target.keep(cache, 1, ())
    with pytest.raises(ValueError, match="at least one new"):
        target.forward([Rows.draft(cache, [])])
    with pytest.raises(ValueError, match="twice"):
        target.forward([Rows.draft(cache, [1]), Rows.draft(cache, [1])])
    with pytest.raises(ValueError, match="hidden"):
        target.forward([Rows.draft(cache, [1], hidden=True)])
    target.forward([Rows.draft(cache, [1], branching())])
    with pytest.raises(ValueError, match="no path"):
        target.keep(cache, 1, (0, 1))
    with pytest.raises(ValueError, match="cannot be kept"):
        target.keep(cache, 2, ())
    target.keep(cache, 1, (0,))
    with pytest.raises(ValueError, match="without a forward"):
        target.keep(cache, 1, ())
    with pytest.raises(OutOfMemory):
        target.prefill(cache, [0, 0, 0])
