"""Multi-path block verification: exact by enumeration, its laws equal to brute force."""

from __future__ import annotations

import itertools
from collections import Counter, defaultdict
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.proof.joints import joint_after_round, joint_of_loop

from paceline.core import tree as trees
from paceline.core.types import ROOT, Budget, Distribution, DraftSampling, SamplingParams, TokenTree
from paceline.errors import IncompatibleDraft
from paceline.proof.cases import grown
from paceline.proof.compare import max_error, one_round, target_joint
from paceline.proof.oracle import ScriptedRandomness, enumerate_distribution
from paceline.proof.tabular import DistributionOf, TabularDistributions, TabularModel, processed
from paceline.sampling.distributions import from_dense
from paceline.sampling.randomness import KeyedRandomness, Randomness
from paceline.trees.drawn import Paths
from paceline.verifiers.block import Block
from paceline.verifiers.multipath_block import Competition, MultipathBlock

EXACT = 1e-12
RULE = MultipathBlock()


def mean_accepted(
    rule: Block | MultipathBlock, p: DistributionOf, q: DistributionOf, count: int, depth: int
) -> float:
    """Exact mean of the drafted tokens that one round accepts."""
    propose, budget = grown(Paths(count), q), Budget(count * depth, depth)
    lengths = enumerate_distribution(lambda r: (len(one_round(rule, p, propose, (0,), r, budget)),))
    return sum((length - 1) * mass for (length,), mass in lengths.items())


@pytest.mark.parametrize("sharpness", [0.5, 1.5, 4.0])
@pytest.mark.parametrize(
    ("vocabulary", "depth", "count", "nodes"),
    [
        (2, 1, 2, 2),
        (2, 2, 2, 4),
        (2, 3, 2, 6),
        (2, 2, 3, 6),
        (3, 1, 3, 3),
        (3, 2, 2, 4),
        (4, 1, 2, 2),
        (2, 3, 1, 3),
        # Too few nodes: how long each path is then depends on where paths agreed.
        (2, 2, 2, 3),
        (2, 3, 2, 4),
        (3, 2, 2, 3),
    ],
)
def test_one_round_is_exact(
    vocabulary: int, depth: int, count: int, nodes: int, sharpness: float
) -> None:
    p, q = (TabularModel(vocabulary, 4, seed, sharpness) for seed in (1, 11))
    propose = grown(Paths(count), q.distribution)
    joint = joint_after_round(RULE, p.distribution, propose, (0,), depth + 1, Budget(nodes, depth))
    assert max_error(joint, target_joint(p.distribution, (0,), depth + 1)) < EXACT


@pytest.mark.parametrize(
    "params",
    [
        SamplingParams(temperature=0.7),
        SamplingParams(temperature=1.3, top_p=0.75),
        SamplingParams(temperature=1, top_k=2, presence_penalty=0.5),
        SamplingParams(temperature=0),
    ],
    ids=["warm", "top-p", "top-k", "greedy"],
)
def test_the_loop_is_exact_with_processed_logits(params: SamplingParams) -> None:
    prompt, params = (0, 1), replace(params, max_new_tokens=3)
    model, other = TabularModel(3, 3, 21, 1.5), TabularModel(3, 3, 22, 1.5)
    truth = target_joint(processed(model.logits, params, prompt), prompt, 3)
    propose = grown(Paths(2), processed(other.logits, params, prompt))
    joint = joint_of_loop(model.logits, 3, RULE, propose, prompt, params, Budget(3, 2))
    assert max_error(joint, truth) < EXACT


def distributions(seed: int, size: int, sparse: bool) -> tuple[Distribution, Distribution]:
    """Random p and q; the sparse ones on supports that differ."""
    rng = np.random.default_rng(seed)
    p, q = rng.dirichlet(np.full(size, 0.7), size=2)
    if not sparse:
        return from_dense(p), from_dense(q)
    mine, theirs = np.arange(size - 1), np.arange(1, size)
    return (
        Distribution(p[mine] / p[mine].sum(), mine, size),
        Distribution(q[theirs] / q[theirs].sum(), theirs, size),
    )


@pytest.mark.parametrize("sparse", [False, True], ids=["dense", "sparse"])
@pytest.mark.parametrize("most", [1, 2, 3, 4])
def test_the_law_of_the_best_of_several_is_that_of_brute_force(most: int, sparse: bool) -> None:
    for seed in range(20):
        p, q = distributions(seed, 5, sparse)
        competition = Competition(p, q)
        count, distribution = competition.distribution(most, weight=0.8)
        assert 1 <= count <= most
        assert distribution.probs.sum() == pytest.approx(1, abs=EXACT)
        expected: dict[int, float] = defaultdict(float)
        support = [q.token(index) for index in range(len(q.probs))]
        for draws in itertools.product(support, repeat=count):
            chance = np.prod([q.prob(token) for token in draws])
            expected[draws[competition.best(draws)]] += float(chance)
        for token in support:
            assert distribution.prob(token) == pytest.approx(expected[token], abs=EXACT)


def test_as_many_compete_as_accept_most() -> None:
    """Up to what the grouping rounds off."""
    counts = Counter()
    for seed in range(60):
        p, q = distributions(seed, 5, sparse=False)
        if seed % 2:
            q = from_dense(0.8 * p.dense() + 0.2 * q.dense())
        competition = Competition(p, q)
        count, distribution = competition.distribution(4, weight=1.0)
        counts[count] += 1
        accepted = np.minimum(p.dense(), distribution.dense()).sum()
        for fewer in range(1, 5):
            other = competition.distribution(fewer, weight=1.0)[1]
            assert accepted >= np.minimum(p.dense(), other.dense()).sum() - 0.01
    assert len(counts) > 2  # neither always one nor always all


def test_one_draw_competes_where_the_drafter_is_right() -> None:
    p, _ = distributions(3, 6, sparse=False)
    count, distribution = Competition(p, p).distribution(4, weight=1.0)
    assert count == 1
    assert distribution is p


@given(st.integers(0, 10**6), st.integers(2, 40))
@settings(max_examples=50)
def test_groups_ascend_in_the_ratio(seed: int, size: int) -> None:
    p, q = distributions(seed, size, sparse=False)
    competition = Competition(p, q)
    ratios = p.probs / q.probs
    pairs = [(a, b) for a, b in itertools.combinations(range(size), 2)]
    for a, b in pairs[:200]:
        lower, upper = (a, b) if ratios[a] < ratios[b] else (b, a)
        if ratios[upper] > 1.04 * ratios[lower]:  # else equal to 5 digits
            assert competition.best([lower, upper]) == 1
            assert sum(competition.masses(lower)) <= competition.masses(upper)[0] + EXACT
    for token in range(size):
        below, group = competition.masses(token)
        tied = [t for t in range(size) if competition.masses(t)[0] == below]
        assert group == pytest.approx(sum(q.prob(t) for t in tied), abs=EXACT)
        assert competition.best([tied[-1], token]) == 0  # the first drawn


def test_a_whole_vocabulary_is_ranked_like_a_few_tokens() -> None:
    size = 20_000
    p, q = (from_dense(row) for row in np.random.default_rng(6).dirichlet(np.full(size, 0.3), 2))
    competition = Competition(p, q)
    count, distribution = competition.distribution(3, weight=0.9)
    assert count > 1
    assert distribution.probs.sum() == pytest.approx(1, abs=1e-9)
    mantissa, exponent = np.frexp((p.probs / q.probs).astype(np.float32))
    rank = exponent * 32.0 + np.floor((2 * mantissa - 1) * 32)  # 5 digits behind the first
    for token in range(0, size, 997):
        below, group = competition.masses(token)
        assert below == pytest.approx(q.probs[rank < rank[token]].sum(), abs=1e-12)
        assert group == pytest.approx(q.probs[rank == rank[token]].sum(), abs=1e-12)
        best = ((below + group) ** count - below**count) / group
        assert distribution.prob(token) == pytest.approx(q.prob(token) * best, rel=1e-6)


def test_ties_are_exact_too() -> None:
    """Tokens of one ratio, among which the first drawn is selected."""
    p = from_dense(np.array([0.3, 0.3, 0.1, 0.3]))
    q = from_dense(np.array([0.15, 0.15, 0.4, 0.3]))
    competition = Competition(p, q)
    assert competition.masses(0) == competition.masses(1)
    count, distribution = competition.distribution(2, weight=1.0)
    assert count == 2
    np.testing.assert_allclose(distribution.probs, [0.255, 0.255, 0.16, 0.33], atol=EXACT)


@pytest.mark.parametrize(("vocabulary", "count"), [(2, 2), (2, 3), (3, 2)])
def test_the_law_of_the_selected_path_is_that_of_brute_force(vocabulary: int, count: int) -> None:
    """Over all tuples of paths: what is selected next, given what the rows may depend on."""
    p, q = (TabularModel(vocabulary, 4, seed, 1.0) for seed in (5, 6))
    found: dict[tuple[int, ...], dict[int, float]] = defaultdict(lambda: defaultdict(float))
    said: dict[tuple[int, ...], Distribution] = {}

    def draw(randomness: Randomness) -> tuple[int, ...]:
        draft = grown(Paths(count), q.distribution)((0,), randomness, Budget(2 * count, 2))
        path, rows = RULE.select(draft, TabularDistributions(p.distribution, (0,), draft))
        first, second = draft.tokens[path].tolist()
        assert draft.sampling is not None
        through = sum(each[0] == path[0] for each in draft.sampling.paths)
        said[()], said[first, through] = rows
        return first, through, second

    for (first, through, second), mass in enumerate_distribution(draw).items():
        found[()][first] += mass
        found[first, through][second] += mass
    assert len(said) > vocabulary  # not always the same number of paths goes through a token
    for history, masses in found.items():
        for token, mass in masses.items():
            share = mass / sum(masses.values())
            assert said[history].prob(token) == pytest.approx(share, abs=EXACT), history


def test_one_path_is_block_verification() -> None:
    p, q = (TabularModel(5, 4, seed, 1.5) for seed in (7, 8))
    propose = grown(Paths(1), q.distribution)
    for seed in range(200):
        draft = propose((0,), KeyedRandomness(seed), Budget(4, 4))
        target = TabularDistributions(p.distribution, (0,), draft)
        single = Block().verify(draft, target, KeyedRandomness(seed))
        assert RULE.verify(draft, target, KeyedRandomness(seed)) == single


@pytest.mark.parametrize(("vocabulary", "depth"), [(3, 1), (4, 1), (2, 2), (3, 2)])
def test_two_paths_accept_no_less_than_one_and_often_more(vocabulary: int, depth: int) -> None:
    """At depth 1 by the choice of how many compete; deeper, seen on these tables."""
    gains = []
    for sharpness in (0.5, 1.5, 4.0):
        p, q = (TabularModel(vocabulary, 4, seed, sharpness) for seed in (1, 11))
        one = mean_accepted(Block(), p.distribution, q.distribution, 1, depth)
        gains.append(mean_accepted(RULE, p.distribution, q.distribution, 2, depth) - one)
    assert min(gains) > -EXACT
    assert max(gains) > 0.05


def test_paths_of_a_perfect_drafter_are_always_right() -> None:
    model = TabularModel(3, 4, 9)
    assert mean_accepted(RULE, model.distribution, model.distribution, 2, 2) == pytest.approx(
        2, abs=EXACT
    )


def test_greedy_targets_accept_whatever_path_is_right() -> None:
    """One-hot p: some path holds the greedy text, or none does."""
    params = SamplingParams(temperature=0)
    model, other = TabularModel(3, 3, 41), TabularModel(3, 3, 42)
    p = processed(model.logits, params, (0,))
    first = p((0,)).argmax()
    second = p((0, first)).argmax()
    for seed in range(100):
        draft = grown(Paths(3), other.distribution)((0,), KeyedRandomness(seed), Budget(6, 2))
        verdict = RULE.verify(draft, TabularDistributions(p, (0,), draft), KeyedRandomness(seed))
        assert draft.sampling is not None
        tokens = {tuple(draft.tokens[list(path)].tolist()) for path in draft.sampling.paths}
        best = max((2 if t == (first, second) else int(t[0] == first)) for t in tokens)
        assert len(verdict.path) == best


def refused(draft: TokenTree) -> str:
    target = TabularDistributions(TabularModel(3, 2, 1).distribution, (0,), draft)
    with pytest.raises(IncompatibleDraft, match="verifier 'multipath-block'") as caught:
        RULE.verify(draft, target, ScriptedRandomness())
    return str(caught.value)


def test_other_drafts_and_wrong_paths_are_refused() -> None:
    row = from_dense(np.full(3, 1 / 3))
    assert "this draft is iid" in refused(
        trees.chain([1], sampling=DraftSampling("iid", {ROOT: row}))
    )
    fork = TokenTree(
        np.array([0, 1]),
        np.array([ROOT, ROOT]),
        DraftSampling("paths", {ROOT: row}, paths=((0,),)),
    )
    assert "children of the root are not those that were drawn" in refused(fork)
    impossible = replace(
        fork,
        sampling=DraftSampling(
            "paths", {ROOT: from_dense(np.array([0.5, 0.0, 0.5]))}, paths=((0,), (1,))
        ),
    )
    assert "node 1 holds token 1" in refused(impossible)


def test_an_empty_draft_is_plain_decoding() -> None:
    model = TabularModel(3, 2, 1)
    joint = joint_after_round(
        RULE,
        model.distribution,
        lambda context, randomness, budget: trees.EMPTY,
        (0,),
        2,
        Budget(0, 0),
    )
    assert max_error(joint, target_joint(model.distribution, (0,), 2)) < EXACT
