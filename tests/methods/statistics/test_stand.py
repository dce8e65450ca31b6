"""STAND: its drawn drafts keep the target's law exactly; its laws are remembered and shared."""

from __future__ import annotations

import copy
from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest
from tests.helpers.drafter_context import context as drafter_context
from tests.helpers.steps import step_of
from tests.proof.joints import joint_after_round

from paceline.core.target import Output
from paceline.core.types import ROOT, Budget, Distribution, SamplingParams, TokenTree, Verdict
from paceline.engine.loop import AutoregressiveDecoder
from paceline.engine.stopping import StopRules
from paceline.errors import IncompatibleDraft
from paceline.methods.statistics import stand
from paceline.methods.statistics.stand import Stand
from paceline.policy.controller import Fixed
from paceline.proof.cases import Propose
from paceline.proof.compare import max_error, target_joint
from paceline.proof.oracle import enumerate_distribution
from paceline.proof.tabular import TabularDistributions, TabularModel, TabularTarget, processed
from paceline.sampling.generation import Generation
from paceline.sampling.randomness import KeyedRandomness, Randomness
from paceline.verifiers.base import Verifier
from paceline.verifiers.matching import Coupled
from paceline.verifiers.recursive import RecursiveDistinct
from paceline.verifiers.rejection import Rejection

VOCABULARY = 3
TARGET = TabularModel(VOCABULARY, 2, seed=3)
TEACHER = TabularModel(VOCABULARY, 1, seed=9, sharpness=1.5)
"""Whose laws were remembered: not the target's, so that much is rejected."""


@pytest.fixture(autouse=True)
def small_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    """Copied for every branch that is enumerated; and contexts are evicted on the way."""
    monkeypatch.setattr(stand, "CAPACITY", 24)


def start(tokens: list[int], id: int = 0, params: SamplingParams | None = None) -> Generation:
    return Generation.start(id, tokens, params or SamplingParams())


def teach(drafter: Stand, prompt: list[int], output: list[int], model: TabularModel) -> None:
    """A sequence that is decoded plainly."""
    drafter.open(sequence := start(prompt))
    for token in output:
        [draft] = drafter.propose([sequence], [Budget(1, 1)])
        logits = model.logits(tuple(sequence.tokens))[None]
        sequence.tokens.append(token)
        drafter.observe(step_of([sequence], [draft], [Verdict((), token)], [Output(logits)]))
    drafter.close(sequence)


def taught() -> Stand:
    drafter = Stand(VOCABULARY, drawn=True, lots="one-by-one")
    teach(drafter, [0, 1, 2, 0, 1, 1], [2, 0, 1, 0, 0, 2, 1, 2], TEACHER)
    return drafter


def proposer(drafter: Stand) -> Propose:
    """The drafter as a function, with what it knows now."""

    def propose(context: tuple[int, ...], randomness: Randomness, budget: Budget) -> TokenTree:
        sequence = start(list(context))
        sequence.randomness = randomness
        return copy.deepcopy(drafter).propose([sequence], [budget])[0]

    return propose


def error(propose: Propose, context: tuple[int, ...], budget: Budget) -> float:
    horizon = budget.depth + 1
    joint = joint_after_round(
        RecursiveDistinct(), TARGET.distribution, propose, context, horizon, budget
    )
    return max_error(joint, target_joint(TARGET.distribution, context, horizon))


@pytest.mark.parametrize("context", [(0, 1), (2, 2), (1, 0, 2)])
@pytest.mark.parametrize("budget", [Budget(1, 1), Budget(2, 1), Budget(3, 1), Budget(3, 2)])
def test_drawn_drafts_keep_the_law_exactly(context: tuple[int, ...], budget: Budget) -> None:
    propose = proposer(taught())
    assert error(propose, context, budget) < 1e-12
    assert len(propose(context, KeyedRandomness(0), budget)) == budget.nodes


def flattened(draft: TokenTree) -> TokenTree:
    """Rows that are not those that were drawn from."""
    assert draft.sampling is not None
    uniform = {
        node: Distribution(np.full(len(row.probs), 1 / len(row.probs)), row.ids, row.size)
        for node, row in draft.sampling.rows.items()
    }
    return replace(draft, sampling=replace(draft.sampling, rows=uniform))


def without_unlikely(draft: TokenTree) -> TokenTree:
    """Without the first child if its own probability is small: the decision looks at the token."""
    assert draft.sampling is not None
    keep = len(draft) and draft.sampling.rows[ROOT].prob(int(draft.tokens[0])) > 0.3
    empty = np.zeros(0, np.int64)
    return draft if keep else TokenTree(empty, empty)


@pytest.mark.parametrize("spoil", [flattened, without_unlikely])
def test_the_comparison_finds_wrong_drafts(spoil: Callable[[TokenTree], TokenTree]) -> None:
    propose = proposer(taught())

    def spoilt(context: tuple[int, ...], randomness: Randomness, budget: Budget) -> TokenTree:
        return spoil(propose(context, randomness, budget))

    assert error(spoilt, (2, 2), Budget(1, 1)) > 1e-3


@pytest.mark.parametrize("temperature", [0.7, 1.0])
def test_the_whole_loop_is_exact_while_it_learns(temperature: float) -> None:
    """Laws, hit rates and acceptance change with every step of every branch."""
    params = SamplingParams(temperature, top_p=0.9, max_new_tokens=3)
    prompt = [0, 1, 0]
    target = TabularTarget(TARGET.logits, VOCABULARY)
    stops = StopRules((), 100)
    before = taught()

    def run(randomness: Randomness) -> tuple[int, ...]:
        drafter = copy.deepcopy(before)
        parts = drafter, RecursiveDistinct(), Fixed(2, 2)
        decoder = AutoregressiveDecoder(target, *parts, stops)
        sequence = start(prompt, params=params)
        sequence.randomness = randomness
        decoder.open(sequence)
        while sequence.finish_reason is None:
            decoder.step([sequence])
        return tuple(sequence.generated)

    distribution = processed(TARGET.logits, params, prompt)
    assert (
        max_error(enumerate_distribution(run), target_joint(distribution, tuple(prompt), 3)) < 1e-12
    )


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_drawn_drafts_are_accepted_more_the_closer_their_laws(temperature: float) -> None:
    """A drafter that has seen the text many times against one that has not."""
    target = TabularTarget(TARGET.logits, VOCABULARY)
    drafter = Stand(VOCABULARY, drawn=True)
    rates = []
    for seed in range(12):
        decoder = AutoregressiveDecoder(
            target, drafter, RecursiveDistinct(), Fixed(2, 2), StopRules((), 500)
        )
        params = SamplingParams(temperature, seed=seed, max_new_tokens=40)
        decoder.open(sequence := start([0, 1], params=params))
        while sequence.finish_reason is None:
            decoder.step([sequence])
        decoder.close(sequence)
        rates.append(sequence.stats.accepted_tokens / sequence.stats.drafted_tokens)
    assert sum(rates[6:]) > sum(rates[:1]) * 6
    assert np.mean(rates[6:]) > (0.4 if temperature else 0.45)


@pytest.mark.parametrize(
    ("rule", "drawn"), [(RecursiveDistinct(), True), (Coupled(), False), (Rejection(), False)]
)
def test_a_verifier_decides_whether_drafts_are_drawn(rule: Verifier, drawn: bool) -> None:
    def none() -> TabularTarget:
        raise AssertionError("no draft model is needed")

    capabilities = TabularTarget(TARGET.logits, VOCABULARY).capabilities
    drafter = Stand.create(drafter_context(capabilities, accepts=rule.accepts))
    assert drafter.kind == ("without_replacement" if drawn else None)
    teach(drafter, [0, 1], [2, 1, 0, 1], TEACHER)
    [draft] = drafter.propose([start([0, 1])], [Budget(4, 3)])
    assert (draft.sampling is not None) == drawn
    assert (draft.scores is None) == drawn
    distributions = TabularDistributions(TARGET.distribution, (0, 1), draft)
    if drafter.kind in rule.accepts:
        rule.verify(draft, distributions, KeyedRandomness(0))
    else:
        with pytest.raises(IncompatibleDraft):
            rule.verify(draft, distributions, KeyedRandomness(0))


def test_attempts_at_one_problem_help_one_another() -> None:
    """What one sequence was told is drafted for another in the same batch."""
    drafter = Stand(12)
    first, second = start([1, 2, 3], id=0), start([4, 5], id=1)
    drafter.open(first)
    drafter.open(second)
    drafts = drafter.propose([first, second], [Budget(3, 3)] * 2)
    logits = np.zeros((1, 12), np.float32)
    logits[0, 9] = 20.0
    first.tokens.append(9)
    second.tokens += [2, 3]
    outputs = [Output(logits), Output(np.zeros((1 + len(drafts[1]), 12), np.float32))]
    empty = [replace(draft, tokens=draft.tokens[:0], parents=draft.parents[:0]) for draft in drafts]
    drafter.observe(step_of([first, second], empty, [Verdict((), 9), Verdict((), 3)], outputs))
    [draft] = drafter.propose([second], [Budget(1, 1)])
    assert draft.tokens.tolist() == [9]
