"""T1: the output law of every lossless rule is the target's, by enumeration of shipped code."""

from __future__ import annotations

import numpy as np
import pytest
from tests.proof.joints import joint_after_round, joint_of_loop

from paceline.core import tree as trees
from paceline.core.types import (
    ROOT,
    Budget,
    DraftSampling,
    SamplingParams,
    SamplingScheme,
    TokenTree,
)
from paceline.errors import IncompatibleDraft
from paceline.proof.cases import Propose, likely_chain, random_tree, sampled_chain
from paceline.proof.compare import max_error, target_joint
from paceline.proof.oracle import ScriptedRandomness
from paceline.proof.tabular import DistributionOf, TabularDistributions, TabularModel, processed
from paceline.sampling.distributions import from_dense
from paceline.sampling.randomness import Randomness
from paceline.verifiers.base import Verifier
from paceline.verifiers.matching import Coupled, Greedy, SampleMatch
from paceline.verifiers.rejection import Rejection

EXACT = 1e-12
UNIFORM = from_dense(np.full(3, 1 / 3))
TEMPERATURE_KINDS: tuple[SamplingScheme | None, ...] = (
    None,
    "iid",
    "paths",
    "without_replacement",
    "top_and_one",
    "factorised",
)

PARAMS = {
    "plain": SamplingParams(temperature=1),
    "warm": SamplingParams(temperature=0.7),
    "top-p": SamplingParams(temperature=1.3, top_p=0.75),
    "top-k": SamplingParams(temperature=1, top_k=2),
    "min-p": SamplingParams(temperature=1, min_p=0.3),
    "penalties": SamplingParams(
        temperature=0.9, repetition_penalty=1.4, presence_penalty=0.5, frequency_penalty=0.8
    ),
    "bias": SamplingParams(temperature=1, logit_bias={0: 1.5, 1: -0.5}, banned_tokens=(2,)),
    "forced": SamplingParams(temperature=1, top_p=0.9, forced_tokens={1: 0}),
    "allowed": SamplingParams(temperature=1, top_p=0.8, allowed_tokens=(0, 2)),
    "min tokens": SamplingParams(temperature=1, stop_token_ids=(2,), min_tokens=2),
    "greedy": SamplingParams(temperature=0),
    "dry": SamplingParams(temperature=1, dry_multiplier=0.9, dry_allowed_length=1),
    "greedy dry": SamplingParams(temperature=0, dry_multiplier=3, dry_allowed_length=1),
    "window": SamplingParams(temperature=1, repetition_penalty=1.5, repeat_last_n=2),
    "xtc": SamplingParams(temperature=1, xtc_probability=0.4, xtc_threshold=0.2),
    "typical": SamplingParams(temperature=1, typical_p=0.6),
    "dynamic": SamplingParams(temperature=0.9, dynatemp_range=0.5, top_n_sigma=1.3),
    "order": SamplingParams(
        temperature=0.5, top_p=0.8, min_p=0.2, samplers=("min_p", "temperature", "top_p")
    ),
    "mirostat 1": SamplingParams(temperature=1, mirostat=1, mirostat_tau=1.0, mirostat_eta=0.8),
    "mirostat 2": SamplingParams(temperature=1, mirostat=2, mirostat_tau=1.0, mirostat_eta=0.9),
    "everything": SamplingParams(
        temperature=1, mirostat=2, mirostat_tau=0.9, dry_multiplier=0.5, typical_p=0.9
    ),
}


def drafters(q: DistributionOf, vocabulary: int) -> dict[str, Propose]:
    """One drafter per way of drafting."""
    return {
        "sampled chain": sampled_chain(q),
        "likely chain": likely_chain(q),
        "tree": random_tree(vocabulary, 8, seed=3),
        "bush": random_tree(vocabulary, 14, seed=5),
    }


@pytest.mark.parametrize("depth", [1, 2, 3])
@pytest.mark.parametrize("vocabulary", [2, 3, 4])
@pytest.mark.parametrize(
    ("verifier", "drafting"),
    [
        (Rejection(), ["sampled chain"]),
        (SampleMatch(), ["sampled chain", "likely chain", "tree", "bush"]),
    ],
    ids=lambda value: getattr(value, "name", ""),
)
def test_one_round_is_exact(
    verifier: Verifier, drafting: list[str], vocabulary: int, depth: int
) -> None:
    horizon = depth + 1 if vocabulary < 4 or depth < 3 else depth
    for seed, sharpness in ((1, 0.5), (2, 1.5), (3, 4.0)):
        p = TabularModel(vocabulary, 4, seed, sharpness)
        q = TabularModel(vocabulary, 4, seed + 10, sharpness)
        truth = target_joint(p.distribution, (0,), horizon)
        for name in drafting:
            propose = drafters(q.distribution, vocabulary)[name]
            joint = joint_after_round(
                verifier, p.distribution, propose, (0,), horizon, Budget(14, depth)
            )
            assert max_error(joint, truth) < EXACT, name


@pytest.mark.parametrize("params", PARAMS.values(), ids=PARAMS.keys())
@pytest.mark.parametrize(
    ("verifier", "drafting"),
    [
        (Rejection(), ["sampled chain"]),
        (SampleMatch(), ["sampled chain", "likely chain", "tree"]),
    ],
    ids=lambda value: getattr(value, "name", ""),
)
def test_loop_is_exact_with_processed_logits(
    verifier: Verifier, drafting: list[str], params: SamplingParams
) -> None:
    """The whole decode loop, float32 logits through the sampler on both sides, several rounds."""
    prompt = (0, 1)
    options = {name: getattr(params, name) for name in params.__slots__}
    params = SamplingParams(**(options | {"max_new_tokens": 3}))
    model, other = TabularModel(3, 3, 21, 1.5), TabularModel(3, 3, 22, 1.5)
    truth = target_joint(processed(model.logits, params, prompt), prompt, 3)
    for name in drafting:
        propose = drafters(processed(other.logits, params, prompt), 3)[name]
        joint = joint_of_loop(model.logits, 3, verifier, propose, prompt, params, Budget(8, 2))
        assert max_error(joint, truth) < EXACT, name


@pytest.mark.parametrize("verifier", [Rejection(), SampleMatch()], ids=lambda v: v.name)
def test_loop_is_exact_when_the_draft_misses_support(verifier: Verifier) -> None:
    """Truncated laws on both sides: tokens that only one of them can produce."""
    prompt = (0,)
    cut = SamplingParams(temperature=1, top_k=2, max_new_tokens=3)
    model, other = TabularModel(4, 3, 31, 1.0), TabularModel(4, 3, 32, 1.0)
    truth = target_joint(processed(model.logits, cut, prompt), prompt, 3)
    propose = sampled_chain(processed(other.logits, cut, prompt))
    joint = joint_of_loop(model.logits, 4, verifier, propose, prompt, cut, Budget(2, 2))
    assert max_error(joint, truth) < EXACT


@pytest.mark.parametrize("verifier", [Greedy(), Rejection(), SampleMatch()], ids=lambda v: v.name)
def test_one_hot_targets_give_the_greedy_text(verifier: Verifier) -> None:
    prompt = (0,)
    params = SamplingParams(temperature=0, max_new_tokens=4)
    model, other = TabularModel(3, 3, 41), TabularModel(3, 3, 42)
    distribution = processed(model.logits, params, prompt)
    truth = target_joint(distribution, prompt, 4)
    assert list(truth.values()) == [1.0]
    named = drafters(other.distribution, 3) | {"self": sampled_chain(distribution)}
    for name, propose in named.items():
        if verifier.name == "rejection" and name not in ("sampled chain", "self"):
            continue
        joint = joint_of_loop(model.logits, 3, verifier, propose, prompt, params, Budget(14, 3))
        assert joint == pytest.approx(truth, abs=EXACT), name


@pytest.mark.parametrize(
    ("verifier", "kind"),
    [
        (verifier, kind)
        for verifier in (Greedy(), SampleMatch(), Rejection(), Coupled())
        for kind in TEMPERATURE_KINDS
        if kind not in verifier.accepts
    ],
)
def test_rules_refuse_drafts_they_are_not_exact_for(
    verifier: Verifier, kind: SamplingScheme | None
) -> None:
    rows = {ROOT: from_dense(np.full(3, 1 / 3)), 0: from_dense(np.full(3, 1 / 3))}
    draft = trees.chain([0, 1], sampling=None if kind is None else DraftSampling(kind, rows))
    distributions = TabularDistributions(TabularModel(3, 2, 1).distribution, (0,), draft)
    with pytest.raises(IncompatibleDraft, match=verifier.name):
        verifier.verify(draft, distributions, ScriptedRandomness())


def test_rejection_takes_only_sampled_chains() -> None:
    assert Rejection.accepts == {"iid", "factorised"}
    model = TabularModel(3, 2, 1)
    row = from_dense(np.full(3, 1 / 3))
    branching = TokenTree(
        np.array([0, 1]), np.array([ROOT, ROOT]), DraftSampling("iid", {ROOT: row})
    )
    with pytest.raises(IncompatibleDraft, match="branches"):
        Rejection().verify(
            branching,
            TabularDistributions(model.distribution, (0,), branching),
            ScriptedRandomness(),
        )


@pytest.mark.parametrize(
    ("broken", "says"),
    [
        (DraftSampling("iid", {ROOT: UNIFORM}, draws={ROOT: (0, 0)}), "drew 2 times at the root"),
        (DraftSampling("iid", {ROOT: UNIFORM, 0: UNIFORM}), "children of node 0, which has none"),
    ],
    ids=["repeated draw", "lost token"],
)
def test_rejection_refuses_what_is_no_whole_chain(broken: DraftSampling, says: str) -> None:
    draft = trees.chain([1], sampling=broken)
    distributions = TabularDistributions(TabularModel(3, 2, 1).distribution, (0,), draft)
    with pytest.raises(IncompatibleDraft, match=f"'rejection'.*{says}"):
        Rejection().verify(draft, distributions, ScriptedRandomness())


def test_a_drafted_token_of_draft_probability_zero_is_an_error() -> None:
    model = TabularModel(3, 2, 1)
    draft = trees.chain(
        [1], sampling=DraftSampling("iid", {ROOT: from_dense(np.array([0.5, 0.0, 0.5]))})
    )
    with pytest.raises(IncompatibleDraft, match="no probability"):
        Rejection().verify(
            draft, TabularDistributions(model.distribution, (0,), draft), ScriptedRandomness()
        )


@pytest.mark.parametrize("verifier", [Rejection(), SampleMatch()], ids=lambda v: v.name)
def test_empty_drafts_fit_every_rule(verifier: Verifier) -> None:
    model = TabularModel(3, 2, 1)

    def nothing(context: tuple[int, ...], randomness: Randomness, budget: Budget) -> TokenTree:
        return trees.EMPTY

    joint = joint_after_round(verifier, model.distribution, nothing, (0,), 2, Budget(0, 0))
    assert max_error(joint, target_joint(model.distribution, (0,), 2)) < EXACT
