"""Block verification: exact by enumeration, and as long as theory says, never shorter than token
rejection."""

from __future__ import annotations

import itertools
from dataclasses import replace

import numpy as np
import pytest
from tests.proof.joints import joint_after_round, joint_of_loop

from paceline.core import tree as trees
from paceline.core.types import (
    ROOT,
    Budget,
    Distribution,
    DraftSampling,
    SamplingParams,
    SamplingScheme,
    TokenTree,
)
from paceline.errors import IncompatibleDraft
from paceline.proof.cases import Propose, factorised_chain, grown, sampled_chain
from paceline.proof.compare import max_error, one_round, target_joint
from paceline.proof.oracle import ScriptedRandomness, enumerate_distribution
from paceline.proof.tabular import DistributionOf, TabularDistributions, TabularModel, processed
from paceline.sampling.distributions import from_dense
from paceline.sampling.randomness import KeyedRandomness, Randomness
from paceline.trees.drawn import Paths
from paceline.verifiers.base import Verifier
from paceline.verifiers.block import Block
from paceline.verifiers.rejection import Rejection

EXACT = 1e-12
TEMPERATURE_KINDS: tuple[SamplingScheme, ...] = ("iid", "factorised", "paths")

PARAMS = {
    "warm": SamplingParams(temperature=0.7),
    "top-p": SamplingParams(temperature=1.3, top_p=0.75),
    "top-k": SamplingParams(temperature=1, top_k=2),
    "penalties": SamplingParams(
        temperature=0.9, repetition_penalty=1.4, presence_penalty=0.5, frequency_penalty=0.8
    ),
    "forced": SamplingParams(temperature=1, top_p=0.9, forced_tokens={1: 0}),
    "greedy": SamplingParams(temperature=0),
}


def chains(q: DistributionOf) -> dict[str, Propose]:
    """A chain of every kind that block verification takes."""
    return {
        "iid": sampled_chain(q),
        "factorised": factorised_chain(q),
        "paths": grown(Paths(1), q),
    }


def mean_accepted(verifier: Verifier, p: DistributionOf, propose: Propose, budget: Budget) -> float:
    """Exact mean of the drafted tokens that one round accepts."""
    lengths = enumerate_distribution(
        lambda r: (len(one_round(verifier, p, propose, (0,), r, budget)),)
    )
    return sum((length - 1) * mass for (length,), mass in lengths.items())


def closed_form(p: DistributionOf, q: DistributionOf, vocabulary: int, depth: int) -> float:
    """The sum over prefixes u of w(u) = min(w(parent) p, Q(u))."""

    def below(context: tuple[int, ...], weight: float, mass: float) -> float:
        if len(context) > depth:
            return 0.0
        total = 0.0
        for token in range(vocabulary):
            drafted = mass * q(context).prob(token)
            through = min(weight * p(context).prob(token), drafted)
            total += through + below((*context, token), through, drafted)
        return total

    return below((0,), 1.0, 1.0)


def constant(*probs: float) -> DistributionOf:
    return lambda context: from_dense(np.array(probs))


@pytest.mark.parametrize(
    ("rule", "kind"),
    [
        (rule, kind)
        for rule in (Block(), Rejection())
        for kind in TEMPERATURE_KINDS
        if kind in rule.accepts
    ],
    ids=lambda value: getattr(value, "name", value),
)
@pytest.mark.parametrize(("vocabulary", "depth"), [(2, 3), (3, 2), (4, 1), (4, 2)])
def test_one_round_is_exact(
    rule: Verifier, kind: SamplingScheme, vocabulary: int, depth: int
) -> None:
    """Rows of factorised chains do not depend on drafted tokens; both rules hold for them."""
    for seed, sharpness in ((1, 0.5), (2, 1.5), (3, 4.0)):
        p = TabularModel(vocabulary, 4, seed, sharpness)
        q = TabularModel(vocabulary, 4, seed + 10, sharpness)
        propose = chains(q.distribution)[kind]
        joint = joint_after_round(
            rule, p.distribution, propose, (0,), depth + 1, Budget(depth, depth)
        )
        assert max_error(joint, target_joint(p.distribution, (0,), depth + 1)) < EXACT


def test_one_round_is_exact_for_the_largest_draft() -> None:
    p, q = TabularModel(4, 4, 5, 1.5), TabularModel(4, 4, 15, 1.5)
    joint = joint_after_round(
        Block(), p.distribution, sampled_chain(q.distribution), (0,), 3, Budget(3, 3)
    )
    assert max_error(joint, target_joint(p.distribution, (0,), 3)) < EXACT


@pytest.mark.parametrize("kind", ["iid", "factorised"])
@pytest.mark.parametrize("params", PARAMS.values(), ids=PARAMS.keys())
def test_the_loop_is_exact_with_processed_logits(params: SamplingParams, kind: str) -> None:
    prompt = (0, 1)
    params = replace(params, max_new_tokens=3)
    model, other = TabularModel(3, 3, 21, 1.5), TabularModel(3, 3, 22, 1.5)
    truth = target_joint(processed(model.logits, params, prompt), prompt, 3)
    propose = chains(processed(other.logits, params, prompt))[kind]
    joint = joint_of_loop(model.logits, 3, Block(), propose, prompt, params, Budget(2, 2))
    assert max_error(joint, truth) < EXACT


@pytest.mark.parametrize("sharpness", [0.5, 1.5, 4.0])
@pytest.mark.parametrize(("vocabulary", "depth"), [(2, 1), (2, 3), (3, 2), (4, 2)])
def test_accepted_tokens_are_the_closed_form_and_not_fewer_than_by_token(
    vocabulary: int, depth: int, sharpness: float
) -> None:
    p, q = (TabularModel(vocabulary, 4, seed, sharpness) for seed in (31, 32))
    budget = Budget(depth, depth)
    block = mean_accepted(Block(), p.distribution, sampled_chain(q.distribution), budget)
    token = mean_accepted(Rejection(), p.distribution, sampled_chain(q.distribution), budget)
    assert block == pytest.approx(
        closed_form(p.distribution, q.distribution, vocabulary, depth), abs=EXACT
    )
    assert block >= token - EXACT
    if depth > 1:
        assert block > token + 1e-6


def test_the_gain_over_token_rejection_is_that_of_the_paper_s_example() -> None:
    """Two tokens, the drafter liking each as the target likes the other."""
    p, q = constant(1 / 3, 2 / 3), constant(2 / 3, 1 / 3)
    accepted = {
        rule.name: mean_accepted(rule, p, sampled_chain(q), Budget(2, 2))
        for rule in (Rejection(), Block())
    }
    assert accepted == pytest.approx({"rejection": 10 / 9, "block": 11 / 9}, abs=EXACT)


@pytest.mark.parametrize("concentration", [0.1, 1.0])
def test_no_prefix_of_a_larger_vocabulary_is_accepted_less_than_by_token(
    concentration: float,
) -> None:
    """By the formulas, over random rows: min(w p, Q) against the product of min(p, q)."""
    size, rng = 60, np.random.default_rng(7)
    p, q = rng.dirichlet(np.full(size, concentration), size=(2, size + 1))
    first = np.minimum(p[0], q[0])
    token = first[:, None] * np.minimum(p[1:], q[1:])
    block = np.minimum(first[:, None] * p[1:], q[0][:, None] * q[1:])
    assert (block >= token - 1e-15).all()
    assert block.sum() > 1.02 * token.sum()


def test_a_perfect_drafter_is_always_right() -> None:
    model = TabularModel(4, 3, 71)
    accepted = mean_accepted(
        Block(), model.distribution, sampled_chain(model.distribution), Budget(3, 3)
    )
    assert accepted == pytest.approx(3, abs=EXACT)


def test_rounding_does_not_cost_a_perfect_drafter_its_tokens() -> None:
    """Rows that agree up to their last digits, as from two computations of one model."""
    rng = np.random.default_rng(3)
    p = rng.dirichlet(np.ones(500))
    near = p * (1 + 1e-15 * rng.standard_normal(500))

    def target(context: tuple[int, ...]) -> Distribution:
        return from_dense(p)

    propose = sampled_chain(constant(*near))
    for seed in range(50):
        emitted = one_round(Block(), target, propose, (0,), KeyedRandomness(seed), Budget(6, 6))
        assert len(emitted) == 7


def test_disjoint_supports_accept_nothing() -> None:
    p, q = constant(0.4, 0.6, 0.0, 0.0), constant(0.0, 0.0, 0.5, 0.5)
    assert mean_accepted(Block(), p, sampled_chain(q), Budget(3, 3)) == 0


def refused(draft: TokenTree) -> str:
    distributions = TabularDistributions(TabularModel(3, 2, 1).distribution, (0,), draft)
    with pytest.raises(IncompatibleDraft, match="verifier 'block'") as caught:
        Block().verify(draft, distributions, ScriptedRandomness())
    return str(caught.value)


def test_several_draws_that_look_like_a_chain_are_refused() -> None:
    """Two draws that agreed are not one draw: their law is another."""
    row = from_dense(np.full(3, 1 / 3))
    twice = trees.chain([1], sampling=DraftSampling("iid", {ROOT: row}, draws={ROOT: (0, 0)}))
    assert "drew 2 times at the root" in refused(twice)
    merged = trees.chain([1], sampling=DraftSampling("paths", {ROOT: row}, paths=((0,), (0,))))
    assert "use verifier 'multipath-block'" in refused(merged)


def test_trees_and_impossible_tokens_are_refused() -> None:
    row = from_dense(np.array([0.5, 0.5, 0.0]))
    branching = TokenTree(
        np.array([0, 1]), np.array([ROOT, ROOT]), DraftSampling("iid", {ROOT: row})
    )
    assert "branches" in refused(branching)
    impossible = trees.chain([1, 2], sampling=DraftSampling("iid", {ROOT: row, 0: row}))
    assert "node 1 holds token 2" in refused(impossible)


def test_an_empty_draft_is_plain_decoding() -> None:
    model = TabularModel(3, 2, 1)
    joint = joint_after_round(
        Block(),
        model.distribution,
        lambda context, randomness, budget: trees.EMPTY,
        (0,),
        2,
        Budget(0, 0),
    )
    assert max_error(joint, target_joint(model.distribution, (0,), 2)) < EXACT


def test_accepted_prefixes_are_those_that_closed_forms_name() -> None:
    """Prefix by prefix: the mass accepted through u is w(u)."""
    p, q = (TabularModel(3, 4, seed, 1.5) for seed in (41, 42))

    def accepted(randomness: Randomness) -> tuple[int, ...]:
        draft = sampled_chain(q.distribution)((0,), randomness, Budget(2, 2))
        verdict = Block().verify(
            draft, TabularDistributions(p.distribution, (0,), draft), randomness
        )
        return tuple(draft.tokens[list(verdict.path)].tolist())

    found = enumerate_distribution(accepted)
    for first, second in itertools.product(range(3), repeat=2):
        drafted = q.distribution((0,)).prob(first)
        through = min(p.distribution((0,)).prob(first), drafted)
        mass = sum(m for prefix, m in found.items() if prefix[:1] == (first,))
        assert mass == pytest.approx(through, abs=EXACT)
        drafted *= q.distribution((0, first)).prob(second)
        through = min(through * p.distribution((0, first)).prob(second), drafted)
        assert found.get((first, second), 0.0) == pytest.approx(through, abs=EXACT)
