"""T2: coupled verification by Monte-Carlo (its noise is continuous), and seed for seed."""

from __future__ import annotations

from collections import Counter

import pytest

from paceline.core.tree import EMPTY
from paceline.core.types import Budget, SamplingParams, TokenTree
from paceline.proof.cases import Propose, likely_chain, random_tree, sampled_chain
from paceline.proof.compare import goodness_of_fit, one_round, target_joint
from paceline.proof.negative import RepeatsNoise
from paceline.proof.tabular import DistributionOf, TabularModel, processed
from paceline.sampling.randomness import KeyedRandomness, Randomness
from paceline.verifiers.base import Verifier
from paceline.verifiers.matching import Coupled, SampleMatch

PROMPT = (0,)
MODEL, OTHER = TabularModel(3, 3, 61, 1.0), TabularModel(3, 3, 62, 1.0)
TOP_P = processed(MODEL.logits, SamplingParams(temperature=1.2, top_p=0.8), PROMPT)
PLAIN = processed(MODEL.logits, SamplingParams(temperature=1), PROMPT)


def nothing(context: tuple[int, ...], randomness: Randomness, budget: Budget) -> TokenTree:
    return EMPTY


def several_rounds(
    verifier: Verifier,
    propose: Propose,
    randomness: Randomness,
    horizon: int,
    distribution: DistributionOf = PLAIN,
) -> tuple[int, ...]:
    tokens: tuple[int, ...] = PROMPT
    while len(tokens) < len(PROMPT) + horizon:
        tokens += one_round(verifier, distribution, propose, tokens, randomness, Budget(6, 2))
    return tokens[len(PROMPT) : len(PROMPT) + horizon]


@pytest.mark.parametrize(
    ("verifier", "propose", "distribution", "runs"),
    [
        (Coupled(), random_tree(3, 6, seed=1), PLAIN, 20_000),
        (Coupled(), sampled_chain(OTHER.distribution), TOP_P, 6_000),
        (SampleMatch(), random_tree(3, 6, seed=1), TOP_P, 10_000),
    ],
    ids=["coupled-tree", "coupled-sampled-chain-top-p", "sample-match-tree-top-p"],
)
def test_keyed_draws_fit_the_target(
    verifier: Verifier, propose: Propose, distribution: DistributionOf, runs: int
) -> None:
    counts = Counter(
        several_rounds(verifier, propose, KeyedRandomness(seed), 3, distribution)
        for seed in range(runs)
    )
    truth = target_joint(distribution, PROMPT, 3)
    assert goodness_of_fit(counts, truth) > 1e-3


def test_noise_repeated_within_a_round_is_caught() -> None:
    propose = random_tree(3, 6, seed=1)
    counts = Counter(
        several_rounds(RepeatsNoise(), propose, KeyedRandomness(seed), 3) for seed in range(3000)
    )
    assert goodness_of_fit(counts, target_joint(MODEL.distribution, PROMPT, 3)) < 1e-6


@pytest.mark.parametrize("verifier", [Coupled(), SampleMatch()], ids=lambda v: v.name)
@pytest.mark.parametrize(
    "propose",
    [
        random_tree(3, 6, seed=1),
        random_tree(3, 10, seed=2),
        likely_chain(OTHER.distribution),
        sampled_chain(OTHER.distribution),
    ],
    ids=["tree", "bush", "likely-chain", "sampled-chain"],
)
def test_same_seed_same_tokens_whatever_is_drafted(verifier: Verifier, propose: Propose) -> None:
    for seed in range(60):
        plain = several_rounds(verifier, nothing, KeyedRandomness(seed), 12, TOP_P)
        drafted = several_rounds(verifier, propose, KeyedRandomness(seed), 12, TOP_P)
        assert plain == drafted


def test_streams_of_one_seed_are_independent_samples() -> None:
    counts = Counter(
        several_rounds(Coupled(), nothing, KeyedRandomness(7, stream), 2) for stream in range(4000)
    )
    assert goodness_of_fit(counts, target_joint(MODEL.distribution, PROMPT, 2)) > 1e-3


def test_goodness_of_fit_against_known_quantiles() -> None:
    def statistic(value: float, cells: int) -> float:
        """p-value of a table of equal cells whose chi-square is `value`."""
        expected = 10_000
        shift = (value * expected / 2) ** 0.5
        counts: dict[tuple[int, ...], int] = {(i,): expected for i in range(cells)}
        counts[(0,)] += round(shift)
        counts[(1,)] -= round(shift)
        return goodness_of_fit(counts, {(i,): 1 / cells for i in range(cells)})

    for value, cells in ((3.841, 2), (5.991, 3), (16.919, 10), (18.307, 11)):
        assert statistic(value, cells) == pytest.approx(0.05, rel=0.02)
    assert statistic(0.0, 5) == 1.0
    assert goodness_of_fit({(9,): 1}, {(0,): 1.0}) == 0.0
    assert goodness_of_fit({(0,): 98, (1,): 2}, {(0,): 0.98, (1,): 0.01, (2,): 0.01}) == 1.0
