"""k-SEQ: the equation for rho, the acceptance that follows from it, and its place among rules."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.helpers.sampled_drafts import accepted, best_acceptance, mean_accepted

from paceline.core.types import Budget, Distribution
from paceline.proof.tabular import TabularModel
from paceline.sampling.distributions import from_dense
from paceline.trees.drawn import Iid, Paths
from paceline.verifiers.k_seq import KSeq, scale

SEEDS = range(4)


def chance(p: Distribution, q: Distribution, rho: float) -> float:
    """That one draw is accepted."""
    return float(np.minimum(q.dense(), p.dense() / rho).sum())


@st.composite
def pairs(draw: st.DrawFn) -> tuple[Distribution, Distribution]:
    """Two laws over up to 300 tokens: sharp or flat, truncated or not, near or far."""
    size = draw(st.sampled_from([2, 3, 20, 300]))
    generator = np.random.default_rng(draw(st.integers(0, 10**6)))
    sharpness = draw(st.sampled_from([0.1, 1.0, 4.0]))
    distance = draw(st.sampled_from([0.0, 1e-9, 1e-3, 0.5, 3.0]))
    logits = generator.normal(size=size) * sharpness
    found = []
    for values in (logits, logits + distance * generator.normal(size=size)):
        weights = np.exp(values) * (generator.random(size) < draw(st.sampled_from([0.3, 1.0])))
        weights[generator.integers(size)] += 1e-3
        ids = np.flatnonzero(weights)
        found.append(Distribution(weights[ids] / weights.sum(), ids, size))
    return found[0], found[1]


@settings(max_examples=150)
@given(pairs(), st.integers(1, 8))
def test_rho_solves_its_equation(distributions: tuple[Distribution, Distribution], k: int) -> None:
    """All draws together accept with probability rho times that of one."""
    p, q = distributions
    rho = scale(p, q, k)
    assert 1 <= rho <= k
    one = chance(p, q, rho)
    assert 1 - (1 - one) ** k == pytest.approx(rho * one, abs=1e-12)


@pytest.mark.parametrize("k", [1, 2, 5])
def test_rho_at_the_ends(k: int) -> None:
    """One draw needs no factor, nor does agreement; disjoint supports use up all of k."""
    p, q = from_dense(np.array([0.5, 0.5, 0, 0])), from_dense(np.array([0, 0, 0.5, 0.5]))
    assert scale(p, p, k) == 1.0
    assert scale(p, q, k) == pytest.approx(k)
    assert scale(p, q, 1) == 1.0


@pytest.mark.parametrize("k", [1, 2, 3])
@pytest.mark.parametrize("seed", SEEDS)
def test_acceptance_is_the_closed_form_and_near_the_optimum(seed: int, k: int) -> None:
    p, q = TabularModel(4, 3, seed, 1.2), TabularModel(4, 3, seed + 100, 1.2)
    mine, theirs = p.distribution((0,)), q.distribution((0,))
    one = chance(mine, theirs, scale(mine, theirs, k))
    found = accepted(KSeq(), Iid([k]), p.distribution, q.distribution, Budget(k, 1))
    assert 1 - found.get(0, 0.0) == pytest.approx(1 - (1 - one) ** k, abs=1e-12)
    best = best_acceptance(mine, lambda chosen: float(sum(map(theirs.prob, chosen))) ** k)
    assert (1 - 1 / math.e) * best <= 1 - found.get(0, 0.0) <= best + 1e-12


@pytest.mark.parametrize("seed", SEEDS)
def test_more_paths_accept_more(seed: int) -> None:
    p, q = TabularModel(3, 3, seed, 1.2), TabularModel(3, 3, seed + 100, 1.2)
    means = [
        mean_accepted(KSeq(), Paths(k), p.distribution, q.distribution, Budget(9, 2))
        for k in (1, 2)
    ]
    assert means[0] <= means[1] + 1e-12
