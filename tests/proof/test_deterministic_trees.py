"""Trees that are a function of laws alone, pruned or not, leave the target's law as it is."""

from __future__ import annotations

from collections import Counter
from typing import ClassVar

import pytest
from tests.helpers.sampled_drafts import mean_accepted
from tests.proof.joints import joint_after_round, joint_of_loop

from paceline.core import tree as trees
from paceline.core.types import Budget, SamplingParams, SamplingScheme, TokenTree, Verdict
from paceline.proof.cases import Propose, grown
from paceline.proof.compare import goodness_of_fit, max_error, one_round, target_joint
from paceline.proof.tabular import DistributionOf, TabularModel, processed
from paceline.sampling.distributions import without
from paceline.sampling.randomness import Draw, KeyedRandomness, Purpose, Randomness
from paceline.trees.base import TreeExpansion
from paceline.trees.deterministic import ExpandRerank, Static
from paceline.trees.drawn import Branching
from paceline.trees.shapes import confident
from paceline.verifiers.base import TargetDistributions, Verifier, walk
from paceline.verifiers.matching import Coupled, Greedy, SampleMatch

EXACT, VISIBLE = 1e-12, 1e-3
P, Q = TabularModel(3, 3, 71, 1.2), TabularModel(3, 3, 72, 1.2)
PROMPT = (0,)
SHAPE = ((0,), (1,), (0, 0), (0, 1), (1, 0), (0, 0, 0))
LEAST = 0.2
BUDGET = Budget(7, 3)


def pruned(growth: TreeExpansion, distribution: DistributionOf, least: float = LEAST) -> Propose:
    """A drafter that prunes its trees by confidence."""
    whole = grown(growth, distribution)
    return lambda context, randomness, budget: confident(whole(context, randomness, budget), least)


def drafting(q: DistributionOf) -> dict[str, Propose]:
    """The ways of drafting that are shown to be harmless."""
    return {
        "expand-rerank": grown(ExpandRerank(3), q),
        "expand-rerank with a floor": grown(ExpandRerank(2, floor=0.3), q),
        "static": grown(Static(SHAPE), q),
        "expand-rerank pruned": pruned(ExpandRerank(3), q),
        "static pruned": pruned(Static(SHAPE), q),
    }


def test_pruning_by_confidence_prunes() -> None:
    """Or nothing would be shown by the tests below."""
    whole, part = (
        drafting(Q.distribution)["expand-rerank"],
        drafting(Q.distribution)["expand-rerank pruned"],
    )
    randomness = KeyedRandomness(0)
    sizes = [len(propose(PROMPT, randomness, BUDGET)) for propose in (whole, part)]
    assert sizes[0] > sizes[1] > 1
    drawn = grown(Branching([2, 1]), Q.distribution)(PROMPT, randomness, BUDGET)
    with pytest.raises(ValueError, match="sampled draft"):
        confident(drawn, LEAST)


@pytest.mark.parametrize("depth", [1, 2, 3])
@pytest.mark.parametrize("vocabulary", [2, 3, 4])
@pytest.mark.parametrize("name", drafting(Q.distribution))
def test_one_round_is_exact(name: str, vocabulary: int, depth: int) -> None:
    p, q = (TabularModel(vocabulary, 4, seed, 1.2) for seed in (1, 2))
    horizon = depth + 1 if vocabulary < 4 or depth < 3 else depth
    joint = joint_after_round(
        SampleMatch(),
        p.distribution,
        drafting(q.distribution)[name],
        PROMPT,
        horizon,
        Budget(7, depth),
    )
    assert max_error(joint, target_joint(p.distribution, PROMPT, horizon)) < EXACT


@pytest.mark.parametrize("name", drafting(Q.distribution))
@pytest.mark.parametrize(
    ("verifier", "params"),
    [
        (SampleMatch(), SamplingParams(temperature=1, top_p=0.8, max_new_tokens=3)),
        (SampleMatch(), SamplingParams(temperature=0.8, max_new_tokens=3, presence_penalty=0.7)),
        (SampleMatch(), SamplingParams(max_new_tokens=4)),
        (Greedy(), SamplingParams(max_new_tokens=4)),
        (Coupled(), SamplingParams(max_new_tokens=4)),
    ],
    ids=["sample-match top-p", "sample-match penalty", "sample-match", "greedy", "coupled"],
)
def test_the_loop_is_exact(name: str, verifier: Verifier, params: SamplingParams) -> None:
    """Several rounds of the whole loop; the drafter's laws are those of temperature 1."""
    distribution = processed(P.logits, params, PROMPT)
    propose = drafting(Q.distribution)[name]
    joint = joint_of_loop(P.logits, 3, verifier, propose, PROMPT, params, Budget(7, 2))
    assert max_error(joint, target_joint(distribution, PROMPT, params.max_new_tokens)) < EXACT


def rounds(propose: Propose, seed: int, horizon: int) -> tuple[int, ...]:
    """Tokens of several rounds of coupled verification."""
    tokens, randomness = PROMPT, KeyedRandomness(seed)
    while len(tokens) < len(PROMPT) + horizon:
        tokens += one_round(Coupled(), P.distribution, propose, tokens, randomness, Budget(7, 2))
    return tokens[len(PROMPT) : len(PROMPT) + horizon]


@pytest.mark.parametrize("name", drafting(Q.distribution))
def test_coupled_tokens_are_those_of_plain_decoding_seed_by_seed(name: str) -> None:
    """Its noise is continuous, so it is sampled; the same seeds fit the target's law."""
    propose, counts = drafting(Q.distribution)[name], Counter[tuple[int, ...]]()
    for seed in range(1200):
        found = rounds(propose, seed, 3)
        counts[found] += 1
        if seed < 100:
            assert found == rounds(lambda *_: trees.EMPTY, seed, 3)
    assert goodness_of_fit(counts, target_joint(P.distribution, PROMPT, 3)) > 1e-3


@pytest.mark.parametrize("growth", [ExpandRerank(3), Static(SHAPE)], ids=lambda g: g.name)
def test_scores_are_acceptances_where_the_drafter_is_the_target(growth: TreeExpansion) -> None:
    draft = grown(growth, P.distribution)(PROMPT, KeyedRandomness(0), BUDGET)
    assert draft.scores is not None
    found = mean_accepted(SampleMatch(), growth, P.distribution, P.distribution, BUDGET)
    assert found == pytest.approx(draft.scores.sum(), abs=EXACT)


def prunes_what_will_fail(distribution: DistributionOf, target: DistributionOf) -> Propose:
    """A drafter that looks at the target's coming tokens, and drops nodes whose child will miss."""
    whole = grown(ExpandRerank(3), distribution)

    def propose(context: tuple[int, ...], randomness: Randomness, budget: Budget) -> TokenTree:
        draft = whole(context, randomness, budget)
        first, second = ahead(context, randomness)
        node = [n for n in range(len(draft)) if draft.parents[n] < 0 and draft.tokens[n] == first]
        below = trees.children(draft).get(node[0], []) if node else []
        hit = any(draft.tokens[child] == second for child in below)
        return draft if hit else trees.EMPTY

    def ahead(context: tuple[int, ...], randomness: Randomness) -> tuple[int, int]:
        tokens: list[int] = []
        for _ in range(2):
            p = target((*context, *tokens))
            draw = Draw(len(context) + len(tokens), Purpose.TARGET)
            tokens.append(p.token(randomness.choice(p.probs, draw)))
        return tokens[0], tokens[1]

    return propose


def test_pruning_by_the_target_s_coming_token_is_caught() -> None:
    """A round that ends early because of the token that would have come next is biased, unless the
    next round draws that token again: the engine's names of draws see to that."""
    params = SamplingParams(temperature=1, max_new_tokens=3)
    distribution = processed(P.logits, params, PROMPT)
    propose, truth = (
        prunes_what_will_fail(Q.distribution, distribution),
        target_joint(distribution, PROMPT, 3),
    )
    joint = joint_after_round(SampleMatch(), distribution, propose, PROMPT, 3, Budget(7, 2))
    assert max_error(joint, truth) > VISIBLE
    loop = joint_of_loop(P.logits, 3, SampleMatch(), propose, PROMPT, params, Budget(7, 2))
    assert max_error(loop, truth) < EXACT


class PrunesWhenHit(Verifier):
    """Sample-and-match that takes a hit on an unlikely node for a miss, and corrects it."""

    name: ClassVar[str] = "prunes-when-hit"
    lossless: ClassVar[bool] = False
    accepts: ClassVar[frozenset[SamplingScheme | None]] = frozenset({None})

    def __init__(self, least: float) -> None:
        self._least = least

    def verify(
        self, draft: TokenTree, target: TargetDistributions, randomness: Randomness
    ) -> Verdict:
        """Draw the target's token; drop the node that holds it if its score is low."""
        assert draft.scores is not None
        scores, below = draft.scores, trees.children(draft)

        def pick(node: int, depth: int) -> int:
            p, position = target.distribution(node), target.position + depth
            token = p.token(randomness.choice(p.probs, Draw(position, Purpose.TARGET)))
            for child in below.get(node, ()):
                rest = without(p, token) if draft.tokens[child] == token else None
                if rest is not None and scores[child] < self._least:
                    draw = Draw(position, Purpose.RESIDUAL, root=target.position)
                    return rest.token(randomness.choice(rest.probs, draw))
            return token

        return walk(draft, pick)


def test_pruning_after_the_target_s_token_was_seen_is_caught() -> None:
    propose, truth = grown(ExpandRerank(3), Q.distribution), target_joint(P.distribution, PROMPT, 3)

    def error(least: float) -> float:
        rule = PrunesWhenHit(least)
        joint = joint_after_round(rule, P.distribution, propose, PROMPT, 3, Budget(7, 2))
        assert sum(joint.values()) == pytest.approx(1, abs=EXACT)
        return max_error(joint, truth)

    assert error(LEAST) > VISIBLE
    assert error(0.0) < EXACT
