"""FLy: gate and window against a naive specification over all match patterns."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.verifiers.lossy_runs import DRAFTERS, Step, Truth, requests, run

from paceline.core import tree as trees
from paceline.core.types import Budget, Distribution, SamplingParams
from paceline.errors import InvalidOption
from paceline.methods.fly import Fly, top_entropy
from paceline.proof.oracle import ScriptedRandomness
from paceline.proof.tabular import TabularDistributions
from paceline.sampling.distributions import one_hot

SURE = Distribution(np.array([0.98, 0.01, 0.005, 0.005]), None, 4)
UNSURE = Distribution(np.array([0.4, 0.3, 0.2, 0.1]), None, 4)


def accepted(matches: list[bool], unsure: list[bool], window: int) -> int:
    """How many drafted tokens stand, from the rule's own words."""
    k = len(matches)
    stands = list(matches)
    for i in range(k):
        in_the_last_window = i >= k - window
        pattern = [matches[j] for j in range(i, min(k, i + window))]
        if not in_the_last_window and pattern == [False] + [True] * (window - 1) and unsure[i]:
            stands[i] = True
    return list(itertools.takewhile(lambda i: stands[i], range(k))).__len__()


def verdict_length(matches: list[bool], unsure: list[bool], rule: Fly) -> int:
    """The same by the shipped rule: the target's own token is 0 everywhere, a mismatch drafts 1."""
    draft = trees.chain([0 if match else 1 for match in matches])

    def soft(context: tuple[int, ...]) -> Distribution:
        place = len(context) - 1
        return UNSURE if place < len(unsure) and unsure[place] else SURE

    distributions = TabularDistributions(lambda context: one_hot(0, 4), (0,), draft, soft)
    verdict = rule.verify(draft, distributions, ScriptedRandomness())
    assert verdict.path == tuple(range(len(verdict.path)))
    assert verdict.next_token == 0
    return len(verdict.path)


@pytest.mark.parametrize("k", range(9))
@pytest.mark.parametrize("window", [1, 2, 3, 6, 9])
def test_all_patterns_agree_with_the_naive_specification(k: int, window: int) -> None:
    rule = Fly(window)
    for matches in itertools.product([True, False], repeat=k):
        for unsure in ([True] * k, [False] * k, [i % 2 == 0 for i in range(k)]):
            expected = accepted(list(matches), unsure, window)
            assert verdict_length(list(matches), unsure, rule) == expected


def test_the_paper_s_chain_by_hand() -> None:
    rule, unsure = Fly(), [True] * 15
    pattern = [True] * 15
    pattern[8] = False
    assert verdict_length(pattern, unsure, rule) == 15
    pattern[8], pattern[9] = True, False  # the sixth from the end: within the last window
    assert verdict_length(pattern, unsure, rule) == 9
    pattern[9], pattern[2], pattern[6] = True, False, False  # a second mismatch in the window
    assert verdict_length(pattern, unsure, rule) == 2


def test_both_conditions_matter() -> None:
    """Negative control: rules without gate, or with another window, are told apart."""
    matches = [True, False, True, True, True]
    assert verdict_length(matches, [True] * 5, Fly(3)) == 5
    assert verdict_length(matches, [False] * 5, Fly(3)) == 1
    assert verdict_length(matches, [False] * 5, Fly(3, gate=0)) == 5
    assert verdict_length(matches, [True] * 5, Fly(4)) == 1


def naive_match(step: Step, truth: Truth, node: int, context: tuple[int, ...]) -> int | None:
    """The child of a node that holds the target's own token."""
    own = truth.own(context)
    below = np.flatnonzero(step.draft.parents == node).tolist()
    return next((child for child in below if step.draft.tokens[child] == own), None)


def excused(step: Step, truth: Truth, node: int, context: tuple[int, ...], rule: Fly) -> bool:
    """Whether the drafted `node`, which ends `context`, may stand although it is a mismatch."""
    probs = sorted(truth.soft(context[:-1]).dense().tolist(), reverse=True)[:3]
    if -sum(p * math.log(p) for p in probs if p) < rule.gate - 1e-12:
        return False
    for _ in range(rule.window - 1):
        child = naive_match(step, truth, node, context)
        if child is None:
            return False
        node, context = child, (*context, int(step.draft.tokens[child]))
    return bool((step.draft.parents == node).any())


def check(steps: list[Step], truth: Truth, rule: Fly) -> int:
    """Check every committed token; the number of pardons."""
    count = 0
    for step in steps:
        context, node = step.context, -1
        for index, token in enumerate(step.tokens):
            own = truth.own(context)
            context = (*context, token)
            if index < step.drafted:
                below = np.flatnonzero(step.draft.parents == node).tolist()
                node = next(c for c in below if step.draft.tokens[c] == token)
            if token != own:
                assert index < step.drafted
                assert excused(step, truth, node, context, rule)
                count += 1
    return count


@pytest.mark.parametrize("drafter", DRAFTERS)
@settings(max_examples=12)
@given(
    params=requests(),
    window=st.integers(1, 4),
    gate=st.sampled_from([0.0, 0.3, 0.9]),
    nodes=st.integers(1, 20),
)
def test_every_committed_token_is_the_targets_own_or_excused(
    drafter: str, params: SamplingParams, window: int, gate: float, nodes: int
) -> None:
    rule = Fly(window, gate)
    steps = run(rule, DRAFTERS[drafter], params, budget=Budget(nodes, 8))
    check(steps, Truth.of(params), rule)


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_mismatches_are_pardoned_and_a_stricter_reading_is_told_apart(temperature: float) -> None:
    params = SamplingParams(temperature=temperature, max_new_tokens=90, seed=4)
    steps = run(Fly(2), DRAFTERS["nearly"], params, budget=Budget(12, 12))
    assert check(steps, Truth.of(params), Fly(2)) > 3
    with pytest.raises(AssertionError):
        check(steps, Truth.of(params), Fly(9))


@pytest.mark.parametrize(
    ("probs", "expected"),
    [
        ([1.0], 0.0),
        ([0.5, 0.5], math.log(2)),
        ([1 / 3] * 3, math.log(3)),
        ([0.25] * 4, 0.75 * math.log(4)),
        ([0.0, 1.0, 0.0, 0.0], 0.0),
    ],
)
def test_the_entropy_is_of_the_three_best(probs: list[float], expected: float) -> None:
    assert top_entropy(Distribution(np.array(probs), None, len(probs))) == pytest.approx(expected)


@settings(max_examples=60)
@given(st.lists(st.floats(0, 1), min_size=1, max_size=8).filter(lambda w: sum(w) > 0.01))
def test_no_entropy_of_three_exceeds_the_documented_limit(weights: list[float]) -> None:
    probs = np.array(weights) / sum(weights)
    assert top_entropy(Distribution(probs, None, len(probs))) <= math.log(3) + 1e-12


@pytest.mark.parametrize("options", [(0, 0.3), (6, -0.1), (6, math.nan)])
def test_parameters_are_checked(options: tuple[int, float]) -> None:
    with pytest.raises(InvalidOption, match="or more"):
        Fly(*options)
