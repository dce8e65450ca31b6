"""Stochastic beam search: its beam is a sample of paths without replacement, and verifies."""

from __future__ import annotations

import itertools
from collections import Counter

import numpy as np
import pytest
from tests.helpers.sampled_drafts import Sampled

from paceline.core import tree as trees
from paceline.core.types import Budget, SamplingParams
from paceline.proof.cases import Propose, grown
from paceline.proof.compare import goodness_of_fit, one_round, target_joint
from paceline.proof.negative import SortsSiblings, prunes_unlikely
from paceline.proof.oracle import Joint
from paceline.proof.tabular import DistributionOf, TabularModel, processed
from paceline.sampling.randomness import KeyedRandomness
from paceline.trees.drawn import Branching, StochasticBeam
from paceline.verifiers.base import Verifier
from paceline.verifiers.recursive import RecursiveDistinct

P, Q = TabularModel(3, 3, 55, 1.0), TabularModel(3, 3, 56, 1.0)
PROMPT = (0,)
RUNS = 1000


def leaves_of(runs: int, width: int, depth: int) -> Counter[tuple[int, ...]]:
    """How often each sequence of leaves (their tokens, in beam order) came out."""
    counts: Counter[tuple[int, ...]] = Counter()
    propose = grown(StochasticBeam(width), Q.distribution)
    randomness = Sampled(2)
    for _ in range(runs):
        draft = propose(PROMPT, randomness, Budget(99, depth))
        last = [n for n, level in enumerate(trees.depths(draft).tolist()) if level == depth]
        paths = [draft.tokens[list(trees.path_to(draft, node))].tolist() for node in last]
        counts[tuple(itertools.chain(*paths))] += 1
    return counts


def test_the_last_beam_is_drawn_without_replacement_from_all_sequences() -> None:
    sequences = target_joint(Q.distribution, PROMPT, 2)
    wanted: Joint = {
        (*first, *second): chance * other / (1 - chance)
        for (first, chance), (second, other) in itertools.permutations(sequences.items(), 2)
    }
    assert goodness_of_fit(leaves_of(RUNS, 2, 2), wanted) > 1e-3


def test_one_path_is_a_plain_sample() -> None:
    assert goodness_of_fit(leaves_of(RUNS, 1, 2), target_joint(Q.distribution, PROMPT, 2)) > 1e-3


def test_a_wide_beam_holds_every_sequence() -> None:
    draft = grown(StochasticBeam(99), Q.distribution)(PROMPT, KeyedRandomness(0), Budget(99, 3))
    assert len(draft) == 3 + 9 + 27
    assert all(len(nodes) == 3 for nodes in trees.children(draft).values())


def test_levels_keep_the_width_and_the_budget_cuts_the_last() -> None:
    for seed in range(20):
        draft = grown(StochasticBeam(2), Q.distribution)(
            PROMPT, KeyedRandomness(seed), Budget(5, 4)
        )
        assert np.bincount(trees.depths(draft)).tolist() == [0, 2, 2, 1]


def fit(
    verifier: Verifier, propose: Propose, distribution: DistributionOf, runs: int, budget: Budget
) -> float:
    """p-value of three tokens of verified rounds against the target."""
    counts: Counter[tuple[int, ...]] = Counter()
    randomness = Sampled(1)
    for _ in range(runs):
        tokens = PROMPT
        while len(tokens) < 4:
            tokens += one_round(verifier, distribution, propose, tokens, randomness, budget)
        counts[tokens[1:4]] += 1
    return goodness_of_fit(counts, target_joint(distribution, PROMPT, 3))


@pytest.mark.parametrize(
    ("width", "budget", "top_p"),
    [(2, Budget(4, 2), 1.0), (3, Budget(7, 3), 0.8)],
)
def test_verified_beams_have_the_target_s_law(width: int, budget: Budget, top_p: float) -> None:
    params = SamplingParams(temperature=1, top_p=top_p)
    p, q = processed(P.logits, params, PROMPT), processed(Q.logits, params, PROMPT)
    propose = grown(StochasticBeam(width), q)
    assert fit(RecursiveDistinct(), propose, p, RUNS, budget) > 1e-3


def test_branching_by_noise_has_the_target_s_law() -> None:
    propose = grown(Branching([2, 1], noise=True), Q.distribution)
    assert fit(RecursiveDistinct(), propose, P.distribution, RUNS, Budget(4, 2)) > 1e-3


def test_wrong_ways_with_a_beam_are_caught() -> None:
    beam = grown(StochasticBeam(2), Q.distribution)
    budget = Budget(4, 2)
    assert fit(SortsSiblings(), beam, P.distribution, 800, budget) < 1e-6
    assert fit(RecursiveDistinct(), prunes_unlikely(beam, 0.3), P.distribution, 800, budget) < 1e-6
