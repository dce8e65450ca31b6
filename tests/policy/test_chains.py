"""Chains that are sized before they are made, step by step: trials, and what ends them."""

from __future__ import annotations

from tests.helpers.steps import step_of

from paceline.core import tree as trees
from paceline.core.types import Budget, SamplingParams, Verdict
from paceline.policy.cost import CostModel
from paceline.policy.cost_model import ChainSizer
from paceline.sampling.generation import Generation

CHEAP = CostModel((1, 16), [1.0, 1.1])
DEAR = CostModel((1, 16), [1.0, 16.0])


def batch(*ids: int) -> list[Generation]:
    return [Generation.start(id, [1], SamplingParams()) for id in ids]


def test_what_does_not_pay_is_tried_with_one_token_now_and_then() -> None:
    chains, sequences = ChainSizer(Budget(8, 8), 0.6, 0.0), batch(0)
    depths = [chains.budgets(sequences, DEAR, 0)[0].depth for _ in range(96)]
    assert depths == [*[0] * 31, 1] * 3


def test_what_pays_is_drafted_at_every_step() -> None:
    chains, sequences = ChainSizer(Budget(8, 8), 0.9, 0.0), batch(0, 1)
    for _ in range(20):
        assert all(budget.depth for budget in chains.budgets(sequences, CHEAP, 0))


def test_a_rest_ends_within_a_few_steps_of_forgetting_that_a_sequence_was_bad() -> None:
    """Its chances are with those of others again, with whom drafts pay."""
    chains, [bad], [good] = ChainSizer(Budget(4, 4), 0.6, 0.0), batch(0), batch(1)
    costs = CostModel((1, 16), [1.0, 4.0])
    chain = trees.chain([1, 2, 3, 4])
    for _ in range(60):
        for sequence, path in ((good, (0, 1, 2, 3)), (bad, ())):
            chains.budgets([sequence], costs, 0)
            chains.learn(step_of([sequence], [chain], [Verdict(path, 9)]), 0.0, costs)
    depths = [chains.budgets([bad], costs, 0)[0].depth for _ in range(300)]
    assert depths[:30] == [0] * 30
    assert depths[-1] == 4


def test_drafting_that_takes_long_is_learned_and_steps_without_drafts_say_nothing() -> None:
    chains, sequences = ChainSizer(Budget(8, 8), 0.9, 0.0), batch(0)
    assert chains.budgets(sequences, CHEAP, 0)[0].depth == 8
    for _ in range(100):
        chains.learn(step_of(sequences), 50.0, CHEAP)
    assert chains.budgets(sequences, CHEAP, 0)[0].depth == 8
    for _ in range(100):
        chains.learn(step_of(sequences, [trees.chain([1, 2])], [Verdict((0, 1), 1)]), 50.0, CHEAP)
    assert chains.budgets(sequences, CHEAP, 0)[0].depth == 0
