"""Acceptance from p and q alone: against shipped rules by enumeration, and against the bounds."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.lab.measure import naive_drafts as naive

from paceline.core.tree import EMPTY
from paceline.core.types import ROOT, Budget, Distribution, TokenTree
from paceline.lab.measure import bounds as acceptance
from paceline.lab.measure.bounds import (
    RULES,
    BoundedRule,
    Excess,
    best_distinct,
    best_iid,
    by_token,
    overlap,
)
from paceline.proof.cases import Propose, grown, sampled_chain
from paceline.proof.compare import one_round
from paceline.proof.oracle import enumerate_distribution
from paceline.proof.tabular import DistributionOf, TabularDistributions, TabularModel
from paceline.sampling.randomness import KeyedRandomness, Randomness
from paceline.sampling.sampler import top_k_ids
from paceline.trees.deterministic import SharedNoise
from paceline.trees.drawn import Branching, Iid
from paceline.trees.drawn import TopAndOne as TopAndOneGrowth
from paceline.verifiers.base import Verifier
from paceline.verifiers.block import Block
from paceline.verifiers.k_seq import KSeq
from paceline.verifiers.matching import Coupled, SampleMatch
from paceline.verifiers.multipath_block import MeasuredChain, accepted
from paceline.verifiers.recursive import Recursive, RecursiveDistinct
from paceline.verifiers.rejection import Rejection
from paceline.verifiers.top_and_one import TopAndOne

BY_NAME = {rule.verifier: rule for rule in RULES}


def always(distribution: Distribution) -> DistributionOf:
    return lambda context: distribution


def argmax(q: Distribution, drafts: int) -> Propose:
    """The most likely tokens of q as children of the root."""

    def propose(context: tuple[int, ...], randomness: Randomness, budget: Budget) -> TokenTree:
        tokens = top_k_ids(q.probs, min(drafts, int(np.count_nonzero(q.probs))))
        return TokenTree(tokens, np.full(len(tokens), ROOT, dtype=np.int64))

    return propose


SHIPPED: dict[str, tuple[Verifier, Callable[[Distribution, int], Propose]]] = {
    "rejection": (Rejection(), lambda q, n: grown(Iid([n]), always(q))),
    "recursive": (Recursive(), lambda q, n: grown(Iid([n]), always(q))),
    "k-seq": (KSeq(), lambda q, n: grown(Iid([n]), always(q))),
    "recursive-distinct": (RecursiveDistinct(), lambda q, n: grown(Branching([n]), always(q))),
    "top-and-one": (TopAndOne(), lambda q, n: grown(TopAndOneGrowth([n]), always(q))),
    "sample-match": (SampleMatch(), argmax),
}


def enumerated(verifier: Verifier, p: Distribution, propose: Propose, drafts: int) -> float:
    """Probability that one draft of depth 1 is accepted, over all outcomes of shipped code."""

    def run(randomness: Randomness) -> tuple[int, ...]:
        draft = propose((0,), randomness, Budget(drafts, 1))
        distributions = TabularDistributions(always(p), (0,), draft)
        return (len(verifier.verify(draft, distributions, randomness).path),)

    return enumerate_distribution(run).get((1,), 0.0)


@pytest.mark.parametrize(
    ("name", "drafts"), [(name, n) for name in SHIPPED for n in (1, 2, 3) if BY_NAME[name].takes(n)]
)
def test_formulas_give_what_the_shipped_rules_do(name: str, drafts: int) -> None:
    verifier, propose = SHIPPED[name]
    for seed, (size, sharpness) in enumerate(itertools.product((2, 3, 5), (0.4, 1.5, 4.0))):
        generator = np.random.default_rng(seed)
        p, q = (naive.distribution(generator, size, sharpness, zeros=seed % 2) for _ in range(2))
        shipped = enumerated(verifier, p, propose(q, drafts), drafts)
        assert BY_NAME[name].acceptance(p, q, drafts) == pytest.approx(shipped, abs=1e-11)


def test_a_formula_of_another_rule_does_not_fit() -> None:
    """Negative control."""
    generator = np.random.default_rng(5)
    p, q = (naive.distribution(generator, 4, 1.5) for _ in range(2))
    verifier, propose = SHIPPED["recursive-distinct"]
    shipped = enumerated(verifier, p, propose(q, 2), 2)
    assert abs(acceptance.recursive(p, q, 2) - shipped) > 1e-3


def pair(seed: int, size: int, sharpness: float = 1.5) -> tuple[Distribution, Distribution]:
    generator = np.random.default_rng([seed, size])
    shared = sharpness * generator.normal(size=size)
    both = np.exp(shared + generator.normal(size=(2, size)))
    both /= both.sum(axis=1, keepdims=True)
    return Distribution(both[0], None, size), Distribution(both[1], None, size)


@pytest.mark.parametrize(
    ("rule", "drafts"),
    [
        (rule, n)
        for rule in RULES
        for n in (1, 2, 3, 4)
        if rule.takes(n) and (rule.verifier != "coupled" or n == 1)  # beyond one an estimate
    ],
    ids=lambda value: getattr(value, "verifier", value),
)
def test_no_rule_exceeds_its_bound(rule: BoundedRule, drafts: int) -> None:
    for seed, (size, sharpness) in enumerate(itertools.product((3, 30), (0.5, 2.0, 5.0))):
        p, q = pair(seed, size, sharpness)
        assert rule.acceptance(p, q, drafts) <= rule.bound(p, q, drafts) + 1e-12


@pytest.mark.parametrize("drafts", [2, 3, 4])
def test_the_optimal_rules_attain_their_bounds(drafts: int) -> None:
    for seed in range(4):
        p, q = pair(seed, 6)
        tuples = naive.most_probable_and_one(q.probs, drafts)
        found = BY_NAME["top-and-one"].acceptance(p, q, drafts)
        assert found == pytest.approx(naive.best_over_all_subsets(p.probs, tuples), abs=1e-12)
        tuples = naive.argmax(q.probs, drafts)
        found = BY_NAME["sample-match"].acceptance(p, q, drafts)
        assert found == pytest.approx(naive.best_over_all_subsets(p.probs, tuples), abs=1e-12)


def test_the_other_rules_stay_below_theirs() -> None:
    p, q = pair(3, 6, 3.0)
    assert acceptance.recursive(p, q, 2) < acceptance.k_seq(p, q, 2) < best_iid(p, q, 2)
    assert acceptance.recursive_distinct(p, q, 2) < best_distinct(p, q, 2)


masses = st.just(0.0) | st.floats(1e-6, 1.0)
weights = st.lists(masses, min_size=6, max_size=6).filter(lambda w: max(w) > 0.05)


@settings(max_examples=100)
@given(weights, weights, st.integers(2, 4))
def test_dropping_rejected_tokens_from_the_draft_law_never_hurts(
    first: list[float], second: list[float], drafts: int
) -> None:
    p, q = (Distribution(np.array(values) / sum(values), None, 6) for values in (first, second))
    distinct = acceptance.recursive_distinct(p, q, drafts)
    assert distinct >= acceptance.recursive(p, q, drafts) - 1e-10
    assert acceptance.recursive(p, q, drafts) >= acceptance.recursive(p, q, drafts - 1) - 1e-12


@pytest.mark.parametrize("drafts", [3, 4])
def test_pooling_tokens_changes_little(drafts: int, monkeypatch: pytest.MonkeyPatch) -> None:
    for seed in range(3):
        p, q = pair(seed, 30)
        exact = acceptance.recursive_distinct(p, q, drafts)
        with monkeypatch.context() as patch:
            patch.setattr(acceptance, "_STATES", 20 ** (drafts - 1))
            pooled = acceptance.recursive_distinct(p, q, drafts)
        assert pooled != exact
        assert pooled == pytest.approx(exact, abs=1e-4)


@pytest.mark.parametrize("ids", [None, [1, 2, 5]])
def test_the_mass_left_of_p(ids: list[int] | None) -> None:
    p, q = pair(1, 6)
    if ids is not None:
        p = Distribution(p.probs[ids] / p.probs[ids].sum(), np.array(ids, dtype=np.int64), 6)
    scales = np.array([0.0, 0.3, 1.0, 2.0, 50.0])
    direct = [float(np.maximum(p.probs - s * q.at(p.ids), 0).sum()) for s in scales]
    assert Excess.of(p, q).mass(scales) == pytest.approx(direct, abs=1e-12)


@pytest.mark.parametrize("drafts", [1, 2])
def test_coupled_rows_of_keyed_noise(drafts: int) -> None:
    """The share of accepted drafts over many seeds, drafted and verified by shipped code."""
    p, q = pair(2, 8)
    propose, runs = grown(SharedNoise([drafts]), always(q)), 2000
    hits = 0
    for seed in range(runs):
        randomness = KeyedRandomness(seed)
        draft = propose((0,), randomness, Budget(drafts, 1))
        distributions = TabularDistributions(always(p), (0,), draft)
        hits += len(Coupled().verify(draft, distributions, randomness).path)
    found = acceptance.coupled(p, q, drafts)
    spread = math.sqrt(0.25 / runs + (0.25 / acceptance._NOISES if drafts > 1 else 0))
    assert found == pytest.approx(hits / runs, abs=4 * spread)


@settings(max_examples=100)
@given(weights, weights)
def test_sharing_noise_costs_little(first: list[float], second: list[float]) -> None:
    p, q = (Distribution(np.array(values) / sum(values), None, 6) for values in (first, second))
    share = overlap(p, q)
    found = acceptance.coupled(p, q, 1)
    assert found <= share + 1e-12
    assert found >= share / (2 - share) - 1e-12
    assert acceptance.coupled(p, p, 1) == pytest.approx(1)


def measured(p: DistributionOf, q: DistributionOf, tokens: tuple[int, ...]) -> MeasuredChain:
    contexts = [(0, *tokens[:depth]) for depth in range(len(tokens))]
    return MeasuredChain(tokens, [q(c) for c in contexts], [p(c) for c in contexts])


@pytest.mark.parametrize(("verifier", "of"), [(Rejection(), by_token), (Block(), None)])
def test_chains_tell_what_their_rules_accept(
    verifier: Verifier, of: Callable[[MeasuredChain], float] | None
) -> None:
    """The mean over all chains, each with its probability, is the enumerated expectation."""
    for seed in range(3):
        p, q = (
            TabularModel(3, 3, seed, 1.5).distribution,
            TabularModel(3, 3, seed + 9, 1.5).distribution,
        )
        propose = sampled_chain(q)

        def run(
            randomness: Randomness, p: DistributionOf = p, propose: Propose = propose
        ) -> tuple[int]:
            return (len(one_round(verifier, p, propose, (0,), randomness, Budget(3, 3))) - 1,)

        shipped = math.fsum(
            length * mass for (length,), mass in enumerate_distribution(run).items()
        )
        mean = 0.0
        for tokens in itertools.product(range(3), repeat=3):
            chain = measured(p, q, tokens)
            drawn = math.prod(
                distribution.prob(t) for distribution, t in zip(chain.draft, tokens, strict=True)
            )
            mean += drawn * (accepted(chain, 1) if of is None else of(chain))
        assert mean == pytest.approx(shipped, abs=1e-12)


@pytest.mark.parametrize("seed", range(5))
def test_block_verification_accepts_no_less_of_any_chain(seed: int) -> None:
    p, q = (
        TabularModel(4, 3, seed, 2.0).distribution,
        TabularModel(4, 3, seed + 9, 2.0).distribution,
    )
    differences = [
        accepted(chain, 1) - by_token(chain)
        for tokens in itertools.product(range(4), repeat=3)
        for chain in [measured(p, q, tokens)]
    ]
    assert min(differences) >= -1e-12
    assert max(differences) > 0.01


def test_an_empty_chain_accepts_nothing() -> None:
    assert len(EMPTY) == 0
    assert by_token(MeasuredChain((), (), ())) == 0
