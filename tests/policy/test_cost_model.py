"""The cost model's choices against brute force, and what they may depend on."""

from __future__ import annotations

import copy
from collections.abc import Callable
from itertools import product

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tests.helpers.steps import step_of

from paceline.core import tree as trees
from paceline.core.types import ROOT, Budget, DraftSampling, SamplingParams, TokenTree, Verdict
from paceline.policy.controller import ControllerContext
from paceline.policy.cost import CostModel
from paceline.policy.cost_model import MARGIN, CostModelController
from paceline.policy.draft_gate import DraftCost
from paceline.sampling.distributions import from_dense
from paceline.sampling.generation import Generation

SIZES = (1, 2, 4, 8, 16, 32)


def batch(size: int) -> list[Generation]:
    return [Generation.start(i, [1], SamplingParams()) for i in range(size)]


def costs(seconds: Callable[[int], float]) -> CostModel:
    return CostModel(SIZES, [seconds(size) for size in SIZES])


def flat() -> CostModel:
    return costs(lambda rows: 1.0)


def linear() -> CostModel:
    """Every row costs as much as the first: nothing to gain."""
    return costs(float)


def scored(parents: list[int], rates: list[float], tokens: list[int] | None = None) -> TokenTree:
    """A tree whose scores are products of `rates` along the paths."""
    scores: list[float] = []
    for parent, rate in zip(parents, rates, strict=True):
        scores.append(rate * (1.0 if parent == ROOT else scores[parent]))
    return TokenTree(
        np.array(range(len(parents)) if tokens is None else tokens, np.int64),
        np.array(parents, np.int64),
        scores=np.array(scores),
    )


@st.composite
def drafts(draw: st.DrawFn, most: int = 5) -> TokenTree:
    size = draw(st.integers(0, most))
    parents = [draw(st.integers(ROOT, node - 1)) for node in range(size)]
    return scored(parents, [draw(st.sampled_from([0.05, 0.3, 0.5, 0.8, 1.0])) for _ in parents])


steps = st.lists(st.floats(0.01, 1.0), min_size=len(SIZES), max_size=len(SIZES))


def subsets(draft: TokenTree) -> list[tuple[int, float]]:
    """Size and summed score of every set of nodes that is closed under parents."""
    assert draft.scores is not None
    out = []
    for chosen in product((False, True), repeat=len(draft)):
        nodes = [node for node, taken in enumerate(chosen) if taken]
        if all(draft.parents[n] == ROOT or chosen[draft.parents[n]] for n in nodes):
            out.append((len(nodes), float(draft.scores[nodes].sum())))
    return out


@settings(max_examples=60)
@given(st.lists(drafts(), min_size=1, max_size=2), steps)
def test_no_other_choice_of_nodes_commits_more_per_second(
    proposed: list[TokenTree], seconds: list[float]
) -> None:
    model = CostModel(SIZES, np.cumsum(seconds).tolist())
    controller = CostModelController(model)
    controller.queue = 1  # every token counts
    chosen = controller.select(batch(len(proposed)), proposed)
    roots = len(proposed)

    def value(nodes: int, expected: float) -> float:
        return (roots + expected) / model.time(roots + nodes)

    best = max(
        value(sum(size for size, _ in each), sum(score for _, score in each))
        for each in product(*map(subsets, proposed))
    )
    for draft in chosen:
        trees.validate(draft)
    scores = [draft.scores for draft in chosen if draft.scores is not None]
    found = value(sum(map(len, chosen)), sum(float(score.sum()) for score in scores))
    if found != pytest.approx(best, rel=1e-12):
        # A draft must look better than plain decoding by a margin; else nothing is verified.
        assert not any(map(len, chosen))
        assert best <= MARGIN * value(0, 0.0) * (1 + 1e-12)


@given(drafts(most=8))
def test_where_rows_are_free_everything_is_verified(draft: TokenTree) -> None:
    [chosen] = CostModelController(flat()).select(batch(1), [draft])
    assert chosen is draft


@given(drafts(most=12))
def test_where_every_row_costs_a_forward_nothing_is_worth_it(draft: TokenTree) -> None:
    """A node with probability 1 breaks even; one with less loses."""
    assert draft.scores is not None
    [chosen] = CostModelController(linear()).select(batch(1), [draft])
    if (draft.scores < 1).all():
        assert len(chosen) == 0


def test_speculation_fades_out_as_the_batch_fills_the_machine() -> None:
    knee = costs(lambda rows: 1.0 + 0.01 * rows + max(0, rows - 8))
    draft = scored([ROOT, 0, 1, 2, ROOT, ROOT], [0.7, 0.7, 0.7, 0.7, 0.1, 0.1])
    verified = []
    for size in (1, 2, 4, 7, 8, 12):
        chosen = CostModelController(knee).select(batch(size), [draft] * size)
        verified.append(sum(map(len, chosen)) / size)
    assert verified == sorted(verified, reverse=True)
    assert verified[0] >= 4
    assert verified[-1] == 0


def test_the_batch_shares_its_rows_by_likelihood() -> None:
    knee = costs(lambda rows: 1.0 if rows <= 4 else 10.0 * rows)
    weak, strong = scored([ROOT, 0], [0.4, 0.4]), scored([ROOT, 0], [0.9, 0.9])
    controller = CostModelController(knee)
    controller.queue = 1
    first, second = controller.select(batch(2), [weak, strong])
    assert (len(first), len(second)) == (0, 2)


def test_a_batch_that_nobody_waits_to_join_is_as_fast_as_its_slowest() -> None:
    """What one sequence gains alone counts half; what all gain, in full."""
    line = costs(lambda rows: 10.0 + 5 * rows)
    sure, none = scored([ROOT, 0], [0.9, 0.9]), scored([], [])
    for queue, drafts, verified in (
        (1, [sure, none], [2, 0]),
        (0, [sure, none], [0, 0]),
        (0, [sure, sure], [2, 2]),
    ):
        controller = CostModelController(line)
        controller.queue = queue
        assert list(map(len, controller.select(batch(2), drafts))) == verified


@pytest.mark.parametrize("model", [flat, linear])
def test_sampled_drafts_pass_unchanged(model: Callable[[], CostModel]) -> None:
    distribution = DraftSampling(
        "iid", {ROOT: from_dense(np.ones(3) / 3), 0: from_dense(np.ones(3) / 3)}
    )
    sampled, free = trees.chain([1, 2], sampling=distribution), scored([ROOT, 0], [0.5, 0.5])
    chosen = CostModelController(model()).select(batch(2), [sampled, free])
    assert chosen[0] is sampled


def test_drafts_with_estimates_are_asked_for_in_plenty_and_pruned_later() -> None:
    controller = CostModelController(flat(), nodes=20, depth=5)
    sequences = batch(2)
    assert controller.budgets(sequences) == [Budget(20, 5)] * 2
    controller.select(sequences, [scored([], []), scored([], [])])
    assert controller.budgets(sequences) == [Budget(8, 5)] * 2  # little was worth verifying
    controller.select(sequences, [scored([ROOT] * 6, [0.15] * 6), scored([], [])])
    assert controller.budgets(sequences) == [Budget(12, 5)] * 2
    controller.select(sequences, [scored([ROOT] * 12, [0.08] * 12), scored([], [])])
    assert controller.budgets(sequences) == [Budget(20, 5)] * 2


def test_a_drafter_that_stopped_paying_is_noticed_when_it_would_pay_again() -> None:
    """From drafts that were not verified: their first token stood, or it did not."""
    controller = CostModelController(costs(lambda rows: 1.0 + 0.1 * rows))
    [sequence] = batch(1)
    draft = scored([ROOT, 0, 1], [0.9, 0.85, 0.8])

    def step(stood: int) -> int:
        [chosen] = controller.select([sequence], [draft])
        path = tuple(range(min(stood, len(chosen))))
        token = int(draft.tokens[0]) if stood and not len(chosen) else 99
        seconds = 1.0 + 0.1 * (1 + len(chosen))
        controller.observe(step_of([sequence], [chosen], [Verdict(path, token)]), 0.0, seconds)
        return len(chosen)

    while step(stood=0):
        pass
    assert [step(stood=0) for _ in range(20)] == [0] * 20
    sizes = [step(stood=3) for _ in range(200)]
    assert sizes[-1] == 3


def accept(controller: CostModelController, draft: TokenTree, accepted: int, times: int) -> None:
    """Steps of one sequence in which `accepted` tokens of a chain stood."""
    sequences = batch(1)
    for _ in range(times):
        controller.budgets(sequences)
        [verified] = controller.select(sequences, [draft])
        verdict = Verdict(tuple(range(min(accepted, len(verified)))), 0)
        controller.observe(step_of(sequences, [verified], [verdict]), 0.0, controller.costs.time(2))


def test_chains_without_estimates_get_the_depth_that_pays() -> None:
    chain = trees.chain(range(8))
    middling = costs(lambda rows: 1.0 + 0.15 * rows)
    often, seldom = (CostModelController(middling, depth=8) for _ in range(2))
    accept(often, chain, 8, 60)
    accept(seldom, chain, 0, 60)
    [many], [few] = often.budgets(batch(1)), seldom.budgets(batch(1))
    assert many == Budget(8, 8)
    assert few == Budget(0, 0)


def test_slow_drafters_are_asked_for_less() -> None:
    depths = []
    for level in (0.0, 0.2, 3.0):
        controller = CostModelController(
            costs(lambda rows: 1.0 + 0.02 * rows), draft_level_seconds=level
        )
        controller.select(batch(1), [trees.chain([1, 2])])
        depths.append(controller.budgets(batch(1))[0].depth)
    assert depths == sorted(depths, reverse=True)
    assert depths[0] > depths[1] > depths[2] == 0


def test_draft_time_is_learned() -> None:
    controller = CostModelController(flat())
    sequences, chain = batch(1), trees.chain([1, 2, 3, 4])
    controller.select(sequences, [chain])
    assert controller.budgets(sequences)[0].depth > 1
    for _ in range(200):
        controller.observe(step_of(sequences, [chain], [Verdict((0, 1), 0)]), 40.0, 1.0)
    assert controller.budgets(sequences)[0].depth == 0


def test_a_step_without_drafts_does_not_undo_the_choice() -> None:
    """An empty draft says nothing of whether its drafter has estimates."""
    controller = CostModelController(linear())
    sequences = batch(1)
    controller.select(sequences, [trees.chain([1, 2, 3])])
    assert controller.budgets(sequences) == [Budget(0, 0)]
    for _ in range(3):
        controller.select(sequences, [trees.EMPTY])
        controller.observe(step_of(sequences, [trees.EMPTY], [Verdict((), 0)]), 0.0, 1.0)
        assert controller.budgets(sequences) == [Budget(0, 0)]


def count(controller: CostModelController, sequence: Generation) -> int:
    """How many of ten equal candidates a sequence has verified."""
    draft = scored([ROOT] * 10, [0.1] * 10)
    [chosen] = controller.select([sequence], [draft])
    return len(chosen)


def test_estimates_are_calibrated_per_sequence() -> None:
    model = costs(lambda rows: 1.0 + 0.09 * rows)
    controller = CostModelController(model)
    lucky, unlucky = batch(2)
    draft = scored([ROOT, 0], [0.5, 0.5])
    for _ in range(60):
        verdicts = [Verdict((0, 1), 0), Verdict((), 0)]
        controller.observe(step_of([lucky, unlucky], [draft, draft], verdicts), 0.0, model.time(6))
    assert count(controller, lucky) == 10
    assert count(controller, unlucky) == 0
    controller.close(unlucky)
    controller.close(unlucky)
    newcomer = Generation.start(2, [1], SamplingParams())
    assert count(controller, unlucky) == count(controller, newcomer)  # only the shared part left


@settings(
    max_examples=30,
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture],  # the same for all examples
)
@given(
    history=st.lists(st.tuples(drafts(), st.integers(0, 3)), max_size=12),
    names=st.permutations(range(5)),
)
def test_decisions_do_not_depend_on_which_tokens_were_drafted(
    monkeypatch: pytest.MonkeyPatch, history: list[tuple[TokenTree, int]], names: list[int]
) -> None:
    """Predictability: the same trees under other token ids get the same nodes and budgets, if they
    take as long."""
    decisions = []
    monkeypatch.setattr("paceline.policy.cost_model.perf_counter", lambda: 0.0)
    for rename in (range(5), names):
        controller = CostModelController(costs(lambda rows: 1.0 + 0.1 * rows))
        sequences = batch(1)
        seen: list[object] = []
        for draft, reached in history:
            tokens = [rename[token] for token in draft.tokens.tolist()]
            renamed = TokenTree(np.array(tokens, np.int64), draft.parents, scores=draft.scores)
            seen.append(controller.budgets(sequences))
            [chosen] = controller.select(sequences, [renamed])
            back = {name: index for index, name in enumerate(rename)}
            seen.append([back[token] for token in chosen.tokens.tolist()])
            path = next(iter(trees.leaf_paths(chosen)), ())[:reached]
            verdict = Verdict(path, rename[0])
            controller.observe(step_of(sequences, [chosen], [verdict]), 0.1, 1.0 + len(path))
        decisions.append(seen)
    assert decisions[0] == decisions[1]


def test_steps_at_which_nothing_is_asked_for_teach_what_they_take_alone() -> None:
    model = CostModel((1, 4, 8, 16), [1.0, 1.2, 1.6, 2.4])
    controller = CostModelController(model)
    sequences, good = batch(2), scored([ROOT, 0, 1], [0.9, 0.9, 0.9])
    for _ in range(40):
        controller.budgets(sequences)
        chosen = controller.select(sequences, [good, good])
        verdicts = [Verdict(tuple(range(len(draft))), 0) for draft in chosen]
        controller.observe(step_of(sequences, chosen, verdicts), 0.0, 1.7)
    worth = controller._worth
    known, pace = (worth.gate.gain.mean, worth.cost.value), model.pace
    worth.gate.open = lambda cost: False  # type: ignore[method-assign]
    assert controller.budgets(sequences) == [Budget(0, 0)] * 2
    empty = [trees.EMPTY] * 2
    assert controller.select(sequences, empty) == empty
    controller.observe(step_of(sequences, empty, [Verdict((), 0)] * 2), 0.0, 7.0)
    assert (worth.gate.gain.mean, worth.cost.value) == known
    assert model.pace > pace


def test_sizes_that_the_user_gave_are_upper_limits() -> None:
    controller = CostModelController.create(ControllerContext(flat, nodes=3, depth=2))
    assert controller.budgets(batch(1)) == [Budget(3, 2)]
    assert CostModelController.create(ControllerContext(flat)).budgets(batch(1))[0].nodes > 3
    controller.select(batch(1), [trees.chain([1, 2])])
    assert controller.budgets(batch(1)) == [Budget(2, 2)]


def test_drafts_may_end_where_a_further_row_costs_more_than_it_gains() -> None:
    """A row for half a step behind a token that stands with probability p, next 0.5 as likely."""
    for size, least in ((1, 0.5 / 0.5), (4, 4 * 0.5 / 2.5 / 0.5)):
        controller = CostModelController(costs(lambda n: 0.5 + 0.5 * n), chain_acceptance=0.5)
        budget, *_ = controller.budgets(batch(size))
        assert budget.least == pytest.approx(least)
    assert CostModelController(flat()).budgets(batch(1))[0].least == 0


def test_drafts_may_end_where_a_further_token_takes_longer_to_draft_than_it_saves() -> None:
    """Drafts of a step take a fifth of plain decoding's, so one more token a fiftieth."""
    controller = CostModelController(flat(), chain_acceptance=0.5)
    sequences, draft = batch(1), scored([ROOT], [1.0])
    for _ in range(2):  # the first draft's time says nothing
        controller.budgets(sequences)
        drafts = controller.select(sequences, [draft])
        controller.observe(step_of(sequences, drafts, [Verdict((0,), 1)]), 0.2, 1.0)
    assert controller.budgets(sequences)[0].least == pytest.approx(0.02 / 0.5, rel=0.05)


def share_asked(
    controller: CostModelController,
    draft_seconds: float,
    pace: float = 1.0,
    scores: bool = True,
) -> float:
    """Of the last steps of many, in how many drafts were asked for: one token, which half stand."""
    [sequence] = batch(1)
    draft = scored([ROOT], [0.5]) if scores else trees.chain([0])
    truth = copy.deepcopy(controller.costs)
    generator, asked = np.random.default_rng(0), []
    for _ in range(400):
        [budget] = controller.budgets([sequence])
        asked.append(budget.nodes > 0)
        proposed = draft if asked[-1] else trees.EMPTY
        [chosen] = controller.select([sequence], [proposed])
        seconds = pace * truth.time(1 + len(chosen))
        took = pace * draft_seconds if asked[-1] else 0.0
        path = tuple(range(len(chosen) * int(generator.integers(2))))
        controller.observe(step_of([sequence], [chosen], [Verdict(path, 99)]), took, seconds)
    return float(np.mean(asked[-160:]))


def half() -> CostModelController:
    """A second token costs a tenth of the first: one that stands half the time saves 0.4 s."""
    return CostModelController(costs(lambda rows: 0.9 + 0.1 * rows))


def test_drafts_that_cost_more_than_they_save_are_hardly_asked_for() -> None:
    assert share_asked(half(), 0.2) > 0.98  # but for a plain step to compare with
    assert share_asked(half(), 0.7) < 0.1


def test_a_draft_that_was_held_up_counts_as_a_few_and_the_first_as_none() -> None:
    cost = DraftCost()
    assert [cost.add(each) for each in (9.0, 1.0, 1.0, 50.0)] == [0.0, 1.0, 1.0, 4.0]


@pytest.mark.parametrize("scores", [True, False])
def test_trials_of_dear_drafts_take_a_bounded_share_of_the_time(scores: bool) -> None:
    assert share_asked(half(), 5.0, scores=scores) <= 0.02  # six steps' time each


def test_on_a_machine_that_is_held_up_drafts_save_more_as_they_cost_more() -> None:
    assert share_asked(half(), 0.2, pace=3.0) > 0.98


def test_choosing_from_drafts_is_part_of_their_price(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = iter(np.arange(0.0, 1e6, 0.25).tolist())
    monkeypatch.setattr("paceline.policy.cost_model.perf_counter", lambda: next(clock))
    assert share_asked(half(), 0.0) < 0.1
