"""The oracle itself: weights, order of branches, reuse of names, continuous noise."""

from __future__ import annotations

import numpy as np
import pytest
from tests.proof.joints import joint_after_round

from paceline.core.tree import chain
from paceline.core.types import ROOT, Budget, DraftSampling, TokenTree
from paceline.proof.cases import sampled_chain
from paceline.proof.compare import one_round, round_outcomes
from paceline.proof.negative import peeks_at_target
from paceline.proof.oracle import (
    ReusedDraw,
    ScriptedRandomness,
    add_up,
    enumerate_distribution,
    estimate_runs,
    outcomes,
)
from paceline.proof.tabular import TabularModel
from paceline.sampling.randomness import Draw, Purpose, Randomness
from paceline.verifiers.matching import SampleMatch
from paceline.verifiers.rejection import Rejection


def draw(position: int) -> Draw:
    return Draw(position, Purpose.TARGET)


def test_weights_multiply_along_a_run_and_add_over_runs() -> None:
    def run(randomness: Randomness) -> tuple[int, ...]:
        first = randomness.choice(np.array([1.0, 0.0, 3.0]), draw(0))
        if randomness.bernoulli(0.25, draw(1)):
            return (first,)
        return (first + randomness.choice(np.array([0.5, 0.5]), draw(2)),)

    distribution = enumerate_distribution(run)
    assert distribution == pytest.approx(
        {(0,): 0.15625, (1,): 0.09375, (2,): 0.46875, (3,): 0.28125}
    )
    assert sum(distribution.values()) == pytest.approx(1, abs=1e-15)


def test_certain_draws_are_no_branches() -> None:
    def run(randomness: Randomness) -> tuple[int, ...]:
        sure = randomness.bernoulli(1.0, draw(0)), randomness.bernoulli(0.0, draw(1))
        return (*map(int, sure), randomness.choice(np.array([0.0, 2.0]), draw(2)))

    assert enumerate_distribution(run, max_runs=1) == {(1, 0, 1): 1.0}


def test_every_run_is_taken_once() -> None:
    seen: list[tuple[int, ...]] = []

    def run(randomness: Randomness) -> tuple[int, ...]:
        out = tuple(randomness.choice(np.ones(3), draw(i)) for i in range(3))
        seen.append(out)
        return out

    assert len(enumerate_distribution(run)) == len(seen) == 27


def test_same_name_with_same_weights_repeats() -> None:
    weights = np.array([0.25, 0.75])
    distribution = enumerate_distribution(
        lambda r: (r.choice(weights, draw(0)), r.choice(weights, draw(0)))
    )
    assert distribution == {(0, 0): 0.25, (1, 1): 0.75}


def test_same_name_with_other_weights_is_an_error() -> None:
    randomness = ScriptedRandomness()
    randomness.choice(np.array([0.25, 0.75]), draw(0))
    with pytest.raises(ReusedDraw, match="two different draws"):
        randomness.choice(np.array([0.5, 0.5]), draw(0))
    with pytest.raises(ReusedDraw):
        randomness.bernoulli(0.75, draw(0))


def test_a_drafter_that_peeks_at_the_target_is_caught() -> None:
    p, q = TabularModel(3, 2, seed=1), TabularModel(3, 2, seed=2)
    with pytest.raises(ReusedDraw):
        joint_after_round(
            SampleMatch(), p.distribution, peeks_at_target(q.distribution), (0,), 3, Budget(2, 2)
        )


def test_noise_cannot_be_enumerated() -> None:
    with pytest.raises(TypeError, match="Monte-Carlo"):
        enumerate_distribution(lambda r: (int(r.uniform(3, draw(0)).argmax()),))
    with pytest.raises(TypeError, match="Monte-Carlo"):
        enumerate_distribution(lambda r: (int(r.noise(draw(0)).of(np.arange(3)).argmax()),))


@pytest.mark.parametrize("weights", [[0.0, 0.0], [-1.0, 2.0], [np.nan, 1.0], [np.inf, 1.0]])
def test_weights_must_be_a_distribution(weights: list[float]) -> None:
    with pytest.raises(ValueError, match="no distribution"):
        ScriptedRandomness().choice(np.array(weights), draw(0))


def test_probability_outside_the_unit_interval_is_an_error() -> None:
    with pytest.raises(ValueError, match="no distribution"):
        ScriptedRandomness().bernoulli(1.5, draw(0))


def test_too_many_runs_are_refused() -> None:
    with pytest.raises(ValueError, match="more than 5"):
        enumerate_distribution(lambda r: (r.choice(np.ones(6), draw(0)),), max_runs=5)


def test_the_estimate_of_runs_is_exact_on_even_trees_and_unbiased_on_others() -> None:
    def even(randomness: Randomness) -> tuple[int, ...]:
        return tuple(randomness.choice(np.ones(n), draw(at)) for at, n in enumerate((3, 2, 4)))

    def uneven(randomness: Randomness) -> tuple[int, ...]:
        first = randomness.choice(np.ones(3), draw(0))
        return (first, *(randomness.choice(np.ones(2), draw(at)) for at in range(1, 5 - 2 * first)))

    assert estimate_runs(even) == len(enumerate_distribution(even)) == 24
    assert len(enumerate_distribution(uneven)) == 16 + 4 + 1
    assert estimate_runs(uneven, probes=4000) == pytest.approx(21, rel=0.1)


def test_draws_made_before_are_given_and_their_names_are_taken() -> None:
    weights = np.array([0.25, 0.75])
    for first, chance, drawn in outcomes(lambda r: r.choice(weights, draw(0))):
        [(again, sure, _)] = outcomes(lambda r: r.choice(weights, draw(0)), after=drawn)
        assert (again, sure, chance) == (first, 1.0, weights[first])
        with pytest.raises(ReusedDraw):
            list(outcomes(lambda r: r.bernoulli(0.5, draw(0)), after=drawn))


def test_drafts_and_verdicts_apart_give_the_law_of_whole_rounds() -> None:
    p, q = TabularModel(3, 3, seed=1), TabularModel(3, 3, seed=2)
    parts = (Rejection(), p.distribution, sampled_chain(q.distribution), (0,))
    apart = add_up(round_outcomes(*parts, Budget(2, 2)))
    whole = enumerate_distribution(lambda r: one_round(*parts, r, Budget(2, 2)))
    assert apart == pytest.approx(whole, abs=1e-15)


def test_a_drafter_that_ties_drafts_to_acceptance_is_caught() -> None:
    """Also where drafts and verdicts are enumerated apart."""
    p, q = TabularModel(3, 2, seed=1), TabularModel(3, 2, seed=2)

    def tied(context: tuple[int, ...], randomness: Randomness, budget: Budget) -> TokenTree:
        name = Draw(len(context), Purpose.ACCEPT, root=len(context) - 1)
        distribution = q.distribution(context)
        token = distribution.token(randomness.choice(distribution.probs, name))
        return chain([token], sampling=DraftSampling("iid", {ROOT: distribution}))

    with pytest.raises(ReusedDraw):
        joint_after_round(Rejection(), p.distribution, tied, (0,), 2, Budget(1, 1))
