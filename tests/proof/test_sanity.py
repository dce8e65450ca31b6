"""T5: agreement accepts everything, disjoint supports nothing, and counters match analysis."""

from __future__ import annotations

import numpy as np
import pytest

from paceline.core import tree as trees
from paceline.core.types import Budget, Distribution, LogitArray, SamplingParams, TokenTree
from paceline.engine.loop import AutoregressiveDecoder
from paceline.engine.stopping import StopRules
from paceline.policy.controller import Fixed
from paceline.proof.cases import FunctionDrafter, random_tree, sampled_chain
from paceline.proof.compare import one_round
from paceline.proof.oracle import enumerate_distribution
from paceline.proof.tabular import (
    DistributionOf,
    TabularDistributions,
    TabularModel,
    TabularTarget,
    processed,
)
from paceline.sampling.generation import Generation
from paceline.sampling.randomness import Randomness
from paceline.verifiers.base import Verifier
from paceline.verifiers.matching import SampleMatch
from paceline.verifiers.rejection import Rejection


def constant(*probs: float) -> DistributionOf:
    return lambda context: Distribution(np.array(probs), None, len(probs))


def lengths(
    verifier: Verifier, p: DistributionOf, q: DistributionOf, budget: Budget
) -> dict[int, float]:
    """Exact law of the number of tokens that one round emits."""
    propose = sampled_chain(q)
    distribution = enumerate_distribution(
        lambda r: (len(one_round(verifier, p, propose, (0,), r, budget)),)
    )
    return {length: mass for (length,), mass in distribution.items()}


def test_a_perfect_drafter_is_always_right() -> None:
    model = TabularModel(4, 3, 71)
    assert lengths(
        Rejection(), model.distribution, model.distribution, Budget(3, 3)
    ) == pytest.approx({4: 1.0})


def test_disjoint_supports_accept_nothing() -> None:
    p, q = constant(0.4, 0.6, 0.0, 0.0), constant(0.0, 0.0, 0.5, 0.5)
    assert lengths(Rejection(), p, q, Budget(3, 3)) == pytest.approx({1: 1.0})
    assert lengths(SampleMatch(), p, q, Budget(3, 3)) == pytest.approx({1: 1.0})


@pytest.mark.parametrize("depth", [1, 2, 3])
def test_acceptance_is_one_minus_total_variation(depth: int) -> None:
    p, q = constant(0.5, 0.3, 0.2), constant(0.2, 0.2, 0.6)
    alpha = 0.2 + 0.2 + 0.2
    distribution = lengths(Rejection(), p, q, Budget(depth, depth))
    mean = sum(length * mass for length, mass in distribution.items())
    assert mean == pytest.approx((1 - alpha ** (depth + 1)) / (1 - alpha), abs=1e-12)


def test_sample_match_accepts_the_mass_of_the_children() -> None:
    model = TabularModel(4, 3, 72)
    propose = random_tree(4, 6, seed=2)

    def accepted(randomness: Randomness) -> tuple[int, ...]:
        draft = propose((0,), randomness, Budget(6, 3))
        distributions = TabularDistributions(model.distribution, (0,), draft)
        return SampleMatch().verify(draft, distributions, randomness).path

    distribution = enumerate_distribution(accepted)
    draft = propose((0,), None, Budget(6, 3))  # type: ignore[arg-type]  # draws nothing
    for node in range(len(draft)):
        reached = sum(mass for path, mass in distribution.items() if node in path)
        path = trees.path_to(draft, node)
        tokens = draft.tokens[list(path)].tolist()
        chance = np.prod(
            [model.distribution((0, *tokens[:i])).prob(t) for i, t in enumerate(tokens)]
        )
        assert reached == pytest.approx(chance, abs=1e-12)


@pytest.mark.parametrize("depth", [1, 3])
def test_counters_of_the_loop_show_the_analytic_block_efficiency(depth: int) -> None:
    """Constant acceptance: p and q do not depend on the context."""
    target_logits: LogitArray = np.log(np.array([0.5, 0.3, 0.2])).astype(np.float32)
    draft_logits = np.log(np.array([0.2, 0.2, 0.6])).astype(np.float32)

    def logits(context: tuple[int, ...]) -> LogitArray:
        return target_logits

    params = SamplingParams(temperature=1, max_new_tokens=3000, seed=5)
    q = processed(lambda context: draft_logits, SamplingParams(temperature=1), (0,))
    row = q((0,))  # the same everywhere
    decoder = AutoregressiveDecoder(
        TabularTarget(logits, 3, 10_000),
        FunctionDrafter(sampled_chain(lambda context: row)),
        Rejection(),
        Fixed(depth, depth),
        StopRules((), 10_000),
    )
    sequence = Generation.start(0, [0], params)
    decoder.open(sequence)
    while sequence.finish_reason is None:
        decoder.step([sequence])
    stats, alpha = sequence.stats, 0.6
    expected = (1 - alpha ** (depth + 1)) / (1 - alpha)
    assert stats.committed_tokens == 3000
    assert stats.block_efficiency == pytest.approx(expected, rel=0.03)
    by_depth = stats.acceptance_by_depth
    assert by_depth == pytest.approx([alpha ** (d + 1) for d in range(depth)], abs=0.03)
    assert stats.accepted_tokens == sum(stats.accepted_by_depth)


def test_a_useless_drafter_costs_no_tokens() -> None:
    """Block efficiency is exactly one when nothing is ever accepted."""
    model = TabularModel(3, 0, 73)
    least = int(model.logits(()).argmin())

    def wrong(context: tuple[int, ...], randomness: Randomness, budget: Budget) -> TokenTree:
        return trees.chain([least] * min(budget.depth, budget.nodes))

    decoder = AutoregressiveDecoder(
        TabularTarget(model.logits, 3),
        FunctionDrafter(wrong),
        SampleMatch(),
        Fixed(4, 4),
        StopRules((), 100),
    )
    sequence = Generation.start(0, [0], SamplingParams(max_new_tokens=20))
    decoder.open(sequence)
    while sequence.finish_reason is None:
        decoder.step([sequence])
    assert sequence.stats.block_efficiency == 1.0
    assert sequence.stats.accepted_tokens == 0
