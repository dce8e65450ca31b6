"""T1 for rules over several drafts: every growth they take, exact by enumeration; and refusals."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.helpers.sampled_drafts import accepted, constant, tree, verdict_of
from tests.proof.joints import joint_after_round, joint_of_loop

from paceline.core import tree as trees
from paceline.core.types import (
    ROOT,
    Budget,
    Distribution,
    DraftSampling,
    SamplingParams,
    SamplingScheme,
)
from paceline.errors import IncompatibleDraft
from paceline.proof.cases import grown, sampled_chain
from paceline.proof.compare import max_error, target_joint
from paceline.proof.oracle import ScriptedRandomness, enumerate_distribution
from paceline.proof.tabular import DistributionOf, TabularModel, processed
from paceline.sampling.distributions import from_dense
from paceline.sampling.randomness import KeyedRandomness, Randomness
from paceline.trees.base import TreeExpansion
from paceline.trees.drawn import Branching, Iid, Paths, TopAndOne
from paceline.trees.dyspec import Dynamic, Threshold
from paceline.verifiers.base import Verifier
from paceline.verifiers.k_seq import KSeq
from paceline.verifiers.multi_draft import drawn_children
from paceline.verifiers.recursive import Recursive, RecursiveDistinct
from paceline.verifiers.rejection import Rejection
from paceline.verifiers.top_and_one import TopAndOne as OptimalTopAndOne

EXACT = 1e-12
RULES: tuple[Verifier, ...] = (Recursive(), KSeq(), RecursiveDistinct(), OptimalTopAndOne())
INDEPENDENT: tuple[Verifier, ...] = (Recursive(), KSeq())
any_rule = pytest.mark.parametrize("verifier", RULES, ids=lambda v: v.name)


def expansions(verifier: Verifier, widths: list[int]) -> list[TreeExpansion]:
    """Every growth that can be enumerated and that the rule takes, of a shape."""
    found: list[TreeExpansion] = [
        Iid(widths),
        Paths(max(widths)),
        Branching(widths),
        Dynamic(),
        Threshold(0.15),
        TopAndOne(widths),
    ]
    return [growth for growth in found if growth.kind in verifier.accepts]


@any_rule
@pytest.mark.parametrize(
    ("vocabulary", "widths", "budget"),
    [
        (2, [3], Budget(9, 1)),
        (4, [2], Budget(9, 1)),
        (3, [2, 1], Budget(4, 2)),
        (2, [3, 1], Budget(4, 2)),
        (3, [2], Budget(3, 2)),
        (2, [2, 1], Budget(4, 3)),
        (2, [1, 2], Budget(4, 3)),
    ],
)
def test_one_round_is_exact(
    verifier: Verifier, vocabulary: int, widths: list[int], budget: Budget
) -> None:
    """Ragged trees among them: budgets cut levels short, and repeats merge."""
    horizon = budget.depth + 1
    for seed, sharpness in ((1, 1.0), (2, 3.0)):
        p = TabularModel(vocabulary, 4, seed, sharpness)
        q = TabularModel(vocabulary, 4, seed + 10, sharpness)
        truth = target_joint(p.distribution, (0,), horizon)
        for growth in expansions(verifier, widths):
            joint = joint_after_round(
                verifier, p.distribution, grown(growth, q.distribution), (0,), horizon, budget
            )
            assert max_error(joint, truth) < EXACT, growth.name


@any_rule
@pytest.mark.parametrize(
    "params",
    [
        SamplingParams(temperature=0.7),
        SamplingParams(temperature=1.3, top_p=0.75),
        SamplingParams(temperature=1, top_k=2),
        SamplingParams(temperature=0.9, presence_penalty=0.8, frequency_penalty=0.4),
        SamplingParams(temperature=0),
    ],
    ids=["warm", "top-p", "top-k", "penalties", "greedy"],
)
def test_the_loop_is_exact_with_processed_logits(
    verifier: Verifier, params: SamplingParams
) -> None:
    """Two rounds at least, laws truncated on both sides, no name of a draw reused."""
    prompt = (0, 1)
    options = {name: getattr(params, name) for name in params.__slots__}
    params = SamplingParams(**(options | {"max_new_tokens": 2}))
    model, other = TabularModel(4, 3, 21, 1.5), TabularModel(4, 3, 22, 1.5)
    truth = target_joint(processed(model.logits, params, prompt), prompt, 2)
    for growth in expansions(verifier, [2]):
        propose = grown(growth, processed(other.logits, params, prompt))
        joint = joint_of_loop(model.logits, 4, verifier, propose, prompt, params, Budget(3, 2))
        assert max_error(joint, truth) < EXACT, growth.name


def distributions(vocabulary: int) -> st.SearchStrategy[Distribution]:
    """Any law: with and without zeros, kept on its support or dense, one-hot too."""

    def build(weights: list[int], sparse: bool) -> Distribution:
        probs = np.array(weights, dtype=np.float64)
        probs /= probs.sum()
        ids = np.flatnonzero(probs)
        return Distribution(probs[ids], ids, vocabulary) if sparse else from_dense(probs)

    weights = st.lists(st.integers(0, 4), min_size=vocabulary, max_size=vocabulary).filter(any)
    return st.builds(build, weights, st.booleans())


@any_rule
@settings(max_examples=12)
@given(distributions(4), distributions(4), st.integers(1, 2))
def test_any_two_laws_any_number_of_drafts(
    verifier: Verifier, p: Distribution, q: Distribution, width: int
) -> None:
    """Disjoint supports, agreement, certainty on either side, ties, and repeats among them."""
    truth = target_joint(lambda context: p, (0,), 1)
    for growth in expansions(verifier, [width]):
        propose = grown(growth, lambda context: q)
        joint = joint_after_round(verifier, lambda context: p, propose, (0,), 1, Budget(width, 1))
        assert max_error(joint, truth) < EXACT, growth.name


@any_rule
def test_a_perfect_drafter_is_followed_to_a_leaf(verifier: Verifier) -> None:
    model = TabularModel(3, 3, 71)

    def stops_early(randomness: Randomness) -> tuple[int, ...]:
        draft = propose((0,), randomness, Budget(3, 2))
        path = verdict_of(verifier, draft, model.distribution, randomness).path
        return (int(not path or path[-1] in draft.parents),)

    for growth in expansions(verifier, [1, 2]):
        propose = grown(growth, model.distribution)
        assert enumerate_distribution(stops_early).get((1,), 0.0) < EXACT, growth.name


@any_rule
def test_disjoint_supports_accept_nothing(verifier: Verifier) -> None:
    p, q = constant(0.4, 0.6, 0.0, 0.0), constant(0.0, 0.0, 0.5, 0.5)
    for growth in expansions(verifier, [2]):
        found = accepted(verifier, growth, p, q, Budget(2, 2))
        assert found == pytest.approx({0: 1.0}, abs=EXACT), growth.name


@any_rule
def test_a_certain_target_accepts_its_token_wherever_it_was_drafted(verifier: Verifier) -> None:
    """At temperature 0 the output is the greedy text, and no draft of it is refused."""
    p, q = constant(0.0, 0.0, 1.0, 0.0), constant(0.3, 0.3, 0.2, 0.2)
    for growth in expansions(verifier, [3]):
        propose = grown(growth, q)
        for seed in range(30):
            draft = propose((0,), KeyedRandomness(seed), Budget(3, 1))
            verdict = verdict_of(verifier, draft, p, KeyedRandomness(seed))
            hit = np.flatnonzero(draft.tokens == 2).tolist()
            assert list(verdict.path) == hit
            assert verdict.next_token == 2


@pytest.mark.parametrize(
    ("verifier", "growth"),
    [
        (Recursive(), Iid([1])),
        (Recursive(), Paths(1)),
        (KSeq(), Iid([1])),
        (KSeq(), Paths(1)),
        (RecursiveDistinct(), Branching([1])),
        (OptimalTopAndOne(), TopAndOne([1])),
    ],
    ids=lambda value: value.name,
)
def test_one_child_per_node_is_token_rejection_verdict_by_verdict(
    verifier: Verifier, growth: TreeExpansion
) -> None:
    p, q = TabularModel(5, 3, 81, 1.5), TabularModel(5, 3, 82, 1.5)
    for seed in range(100):
        randomness = KeyedRandomness(seed)
        draft = grown(growth, q.distribution)((0,), randomness, Budget(4, 4))
        chain = sampled_chain(q.distribution)((0,), randomness, Budget(4, 4))
        assert draft.tokens.tolist() == chain.tokens.tolist()
        mine = verdict_of(verifier, draft, p.distribution, randomness)
        assert mine == verdict_of(Rejection(), chain, p.distribution, randomness)


@any_rule
def test_an_empty_draft_is_plain_decoding(verifier: Verifier) -> None:
    model = TabularModel(3, 2, 1)
    for seed in range(10):
        verdict = verdict_of(verifier, trees.EMPTY, model.distribution, KeyedRandomness(seed))
        other = verdict_of(Rejection(), trees.EMPTY, model.distribution, KeyedRandomness(seed))
        assert verdict == other


ROW = from_dense(np.array([0.5, 0.25, 0.25, 0.0]))
KIND: dict[str, SamplingScheme] = {
    "recursive": "iid",
    "k-seq": "iid",
    "recursive-distinct": "without_replacement",
    "top-and-one": "top_and_one",
}


@any_rule
@pytest.mark.parametrize(
    ("tokens", "rows", "says"),
    [
        (
            [0, 3],
            {ROOT: ROW},
            "node 1 holds token 3, which its distribution gives no probability",
        ),
        ([0, 1], {}, "no distribution for the children of the root"),
        ([0, 1], {ROOT: from_dense(np.array([0.5, 0.3, 0.1, 0.0]))}, "the root sums to 0.9"),
        ([0, 1], {ROOT: from_dense(np.array([1.5, 0.3, -0.8, 0.0]))}, "negative entries"),
        ([0, 1], {ROOT: ROW, 1: ROW}, "the children of node 1 are not those that were drawn"),
    ],
    ids=["q is zero", "row missing", "not a law", "negative", "pruned below"],
)
def test_a_draft_that_cannot_have_been_drawn_is_refused(
    verifier: Verifier, tokens: list[int], rows: dict[int, Distribution], says: str
) -> None:
    """The message names rule and node. No token is accepted before the fault is found."""
    draft = tree(tokens, [ROOT, ROOT], DraftSampling(KIND[verifier.name], rows))
    p = constant(0.0, 0.0, 0.0, 1.0)
    with pytest.raises(IncompatibleDraft, match=f"verifier '{verifier.name}'.*{says}"):
        verdict_of(verifier, draft, p, ScriptedRandomness())


@any_rule
def test_a_draft_that_was_not_drawn_is_refused(verifier: Verifier) -> None:
    for kind in (None, "iid", "paths", "without_replacement", "top_and_one", "factorised"):
        if kind not in verifier.accepts:
            distribution = None if kind is None else DraftSampling(kind, {ROOT: ROW})
            with pytest.raises(IncompatibleDraft, match=f"'{verifier.name}' takes .* drafts, but"):
                verdict_of(
                    verifier,
                    tree([0], [ROOT], distribution),
                    constant(0.25, 0.25, 0.25, 0.25),
                    DICE,
                )


DICE = KeyedRandomness(0)


@pytest.mark.parametrize("verifier", INDEPENDENT, ids=lambda v: v.name)
@pytest.mark.parametrize(
    ("tokens", "parents", "distribution"),
    [
        ([0], [ROOT], DraftSampling("iid", {ROOT: ROW}, draws={ROOT: (0, 1)})),
        ([0, 1], [ROOT, ROOT], DraftSampling("iid", {ROOT: ROW}, draws={ROOT: (0, 0)})),
        ([0, 1], [ROOT, ROOT], DraftSampling("paths", {ROOT: ROW}, paths=((0,),))),
        ([0, 1], [ROOT, 0], DraftSampling("paths", {ROOT: ROW, 0: ROW}, paths=((0,), (1,)))),
        ([0], [ROOT], DraftSampling("paths", {ROOT: ROW}, paths=((0, 1),))),
        ([0], [ROOT], DraftSampling("paths", {ROOT: ROW})),
    ],
    ids=["node gone", "node undrawn", "path gone", "path elsewhere", "path cut", "no paths"],
)
def test_draws_that_do_not_match_the_tree_are_refused(
    verifier: Verifier, tokens: list[int], parents: list[int], distribution: DraftSampling
) -> None:
    with pytest.raises(IncompatibleDraft, match=f"'{verifier.name}'.*not those that were drawn"):
        verdict_of(
            verifier, tree(tokens, parents, distribution), constant(0.25, 0.25, 0.25, 0.25), DICE
        )


def test_children_come_in_the_order_drawn() -> None:
    rows = {ROOT: ROW, 0: ROW}
    repeated = tree([0, 1, 2], [ROOT, ROOT, 0], DraftSampling("iid", rows, draws={ROOT: (1, 0, 1)}))
    assert drawn_children(Recursive(), repeated) == {ROOT: (1, 0, 1), 0: (2,)}
    merged = tree(
        [0, 1, 2], [ROOT, ROOT, 0], DraftSampling("paths", rows, paths=((1,), (0, 2), (0,)))
    )
    assert drawn_children(Recursive(), merged) == {ROOT: (1, 0, 0), 0: (2,)}
    distinct = tree([2, 0, 1], [ROOT, ROOT, 0], DraftSampling("without_replacement", rows))
    assert drawn_children(RecursiveDistinct(), distinct) == {ROOT: (0, 1), 0: (2,)}


def test_laws_of_nodes_that_are_not_reached_are_not_asked_for() -> None:
    class Counted:
        position = 1

        def __init__(self, distribution: DistributionOf) -> None:
            self.asked: list[int] = []
            self._distribution = distribution

        def distribution(self, node: int) -> Distribution:
            self.asked.append(node)
            return self._distribution((0,))

        def hidden(self, node: int) -> np.ndarray:
            raise AssertionError("no rule here reads hidden states")

    q = constant(0.25, 0.25, 0.25, 0.25)
    for verifier in RULES:
        for growth in expansions(verifier, [2]):
            draft = grown(growth, q)((0,), DICE, Budget(6, 2))
            target = Counted(constant(0.7, 0.1, 0.1, 0.1))
            verdict = verifier.verify(draft, target, DICE)
            assert target.asked == [ROOT, *verdict.path]
