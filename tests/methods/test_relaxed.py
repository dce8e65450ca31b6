"""Relaxed rejection by enumeration: exact at ratio 1, and never beyond the ratio elsewhere."""

from __future__ import annotations

import math

import numpy as np
import pytest
from tests.proof.joints import joint_after_round, joint_of_loop
from tests.verifiers.lossy_runs import factorised

from paceline.core import tree as trees
from paceline.core.types import ROOT, Budget, DraftSampling, SamplingParams, TokenTree
from paceline.errors import IncompatibleDraft, InvalidOption
from paceline.methods.relaxed import Relaxed
from paceline.proof.cases import Propose, likely_chain, random_tree, sampled_chain
from paceline.proof.compare import max_error, target_joint
from paceline.proof.oracle import ScriptedRandomness
from paceline.proof.tabular import DistributionOf, TabularDistributions, TabularModel, processed
from paceline.sampling.distributions import from_dense

EXACT = 1e-12


def drafters(q: DistributionOf, vocabulary: int) -> dict[str, Propose]:
    return {
        "sampled chain": sampled_chain(q),
        "factorised chain": factorised(q),
        "likely chain": likely_chain(q),
        "tree": random_tree(vocabulary, 8, seed=3),
        "bush": random_tree(vocabulary, 14, seed=5),
    }


CASES = [(v, d, s) for v in (2, 3, 4) for d in (1, 2, 3) for s in (1, 2) if (v, d) != (4, 3)]


@pytest.mark.parametrize("name", drafters(TabularModel(2, 1, 1).distribution, 2))
@pytest.mark.parametrize(("vocabulary", "depth", "seed"), CASES)
def test_at_ratio_one_a_round_is_exact(name: str, vocabulary: int, depth: int, seed: int) -> None:
    p = TabularModel(vocabulary, 4, seed, 1.5 * seed)
    q = TabularModel(vocabulary, 4, seed + 10, 1.5)
    propose = drafters(q.distribution, vocabulary)[name]
    truth = target_joint(p.distribution, (0,), depth + 1)
    joint = joint_after_round(
        Relaxed(1), p.distribution, propose, (0,), depth + 1, Budget(14, depth)
    )
    assert max_error(joint, truth) < EXACT


@pytest.mark.parametrize("ratio", [1.25, 2.0, 10.0])
@pytest.mark.parametrize("name", drafters(TabularModel(2, 1, 1).distribution, 2))
def test_no_output_exceeds_the_ratio_to_the_power_of_its_length(name: str, ratio: float) -> None:
    p, q = TabularModel(3, 4, 5, 1.5), TabularModel(3, 4, 6, 1.5)
    propose = drafters(q.distribution, 3)[name]
    joint = joint_after_round(Relaxed(ratio), p.distribution, propose, (0,), 3, Budget(14, 2))
    truth = target_joint(p.distribution, (0,), 3)
    assert math.fsum(joint.values()) == pytest.approx(1, abs=EXACT)
    for output, mass in joint.items():
        # Two tokens are verified, the third is the target's own.
        assert mass <= ratio**2 * truth[output] + EXACT
    first: dict[int, float] = {}
    for output, mass in joint.items():
        first[output[0]] = first.get(output[0], 0.0) + mass
    for token, mass in first.items():
        assert mass <= ratio * p.distribution((0,)).prob(token) + EXACT
    assert max_error(joint, truth) > 1e-3  # negative control: lossy indeed


@pytest.mark.parametrize("name", ["sampled chain", "tree"])
@pytest.mark.parametrize(
    "params",
    [
        SamplingParams(temperature=0.8, top_p=0.8, max_new_tokens=3),
        SamplingParams(temperature=1, presence_penalty=0.7, max_new_tokens=3),
        SamplingParams(temperature=1, banned_tokens=(1,), forced_tokens={1: 0}, max_new_tokens=3),
    ],
    ids=["top-p", "penalty", "bans"],
)
def test_at_ratio_one_the_loop_is_exact_over_several_rounds(
    name: str, params: SamplingParams
) -> None:
    model, other = TabularModel(3, 3, 21, 1.5), TabularModel(3, 3, 22, 1.5)
    truth = target_joint(processed(model.logits, params, (0, 1)), (0, 1), 3)
    propose = drafters(processed(other.logits, params, (0, 1)), 3)[name]
    joint = joint_of_loop(model.logits, 3, Relaxed(1), propose, (0, 1), params, Budget(8, 2))
    assert max_error(joint, truth) < EXACT


def test_a_large_ratio_emits_the_draft_models_law() -> None:
    p, q = TabularModel(3, 2, 1), TabularModel(3, 2, 2)
    joint = joint_after_round(
        Relaxed(1e6), p.distribution, sampled_chain(q.distribution), (0,), 1, Budget(1, 1)
    )
    assert max_error(joint, target_joint(q.distribution, (0,), 1)) < EXACT


@pytest.mark.parametrize("kind", ["paths", "without_replacement", "top_and_one"])
def test_other_draft_laws_and_sampled_trees_are_refused(kind: str) -> None:
    row = from_dense(np.full(3, 1 / 3))
    model = TabularModel(3, 2, 1)
    draft = trees.chain([1], sampling=DraftSampling(kind, {ROOT: row}))  # type: ignore[arg-type]
    with pytest.raises(IncompatibleDraft, match="relaxed"):
        Relaxed().verify(
            draft, TabularDistributions(model.distribution, (0,), draft), ScriptedRandomness()
        )
    fork = TokenTree(np.array([0, 1]), np.array([ROOT, ROOT]), DraftSampling("iid", {ROOT: row}))
    with pytest.raises(IncompatibleDraft, match="branches"):
        Relaxed().verify(
            fork, TabularDistributions(model.distribution, (0,), fork), ScriptedRandomness()
        )


@pytest.mark.parametrize("ratio", [0.99, -1.0, math.nan, math.inf])
def test_the_ratio_is_checked(ratio: float) -> None:
    with pytest.raises(InvalidOption, match="ratio must be 1"):
        Relaxed(ratio)
