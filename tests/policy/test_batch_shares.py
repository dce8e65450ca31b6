"""A batch's rows shared by marginal gain: against every other way to share them."""

from __future__ import annotations

from itertools import accumulate, product

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.helpers.steps import step_of

from paceline.core import tree as trees
from paceline.core.types import (
    ROOT,
    Budget,
    DraftSampling,
    ProbArray,
    SamplingParams,
    Speculation,
    TokenTree,
    Verdict,
)
from paceline.policy.cost import CostModel
from paceline.policy.cost_model import MARGIN, ChainReach, CostModelController, Sizing, best_depths
from paceline.sampling.distributions import from_dense
from paceline.sampling.generation import Generation

SIZES = (1, 2, 4, 8, 16, 32)
curves = st.builds(
    lambda steps: CostModel(SIZES, np.cumsum(steps).tolist()),
    st.lists(st.floats(0.01, 1.0), min_size=len(SIZES), max_size=len(SIZES)),
)


def batch(size: int, context: int = 1) -> list[Generation]:
    return [Generation.start(i, [1] * context, SamplingParams()) for i in range(size)]


def knee() -> CostModel:
    """Rows up to 16 are nearly free; beyond, each costs a tenth of a plain step."""
    return CostModel(SIZES, [1.0, 1.01, 1.02, 1.05, 1.1, 2.7])


def chances(rates: list[float]) -> ProbArray:
    return np.cumprod(np.array(rates, dtype=np.float64))


# Chains that are sized before they are drawn

rates = st.lists(st.sampled_from([0.05, 0.3, 0.6, 0.9, 1.0]), max_size=4)


@settings(max_examples=150)
@given(
    st.lists(rates, min_size=1, max_size=3),
    curves,
    st.sampled_from([0.0, 0.05, 0.4]),
    st.sampled_from([0, 0, 3, 20]),
)
def test_no_other_depths_commit_more_per_second(
    drawn: list[list[float]], costs: CostModel, level: float, beside: int
) -> None:
    reach = [chances(each).tolist() for each in drawn]

    roots = len(reach)
    rate = roots / costs.time(roots)

    def value(depths: tuple[int, ...], margin: float = 1.0) -> float:
        """Tokens per second; beside a prompt, tokens beyond what the time would commit plainly."""
        tokens = roots + sum(sum(r[:d]) for r, d in zip(reach, depths, strict=True))
        seconds = costs.time(roots + beside + sum(depths)) + max(depths) * level
        if beside:
            return tokens - margin * rate * seconds
        return tokens / (seconds * (margin if any(depths) else 1.0))

    every = list(product(*(range(len(each) + 1) for each in reach)))
    found = tuple(best_depths(reach, costs, level, beside))
    # Costs are known no better than by a margin: drafts must be better than plain by that much.
    assert value(found, MARGIN) == pytest.approx(max(value(d, MARGIN) for d in every), abs=1e-9)
    assert value(found) >= value((0,) * roots) - 1e-9


def test_rows_go_to_the_chains_that_stand() -> None:
    costs = CostModel(SIZES, [1.0, 1.0, 1.0, 1.0, 9.0, 18.0])
    strong, weak = (chances([rate] * 8).tolist() for rate in (0.9, 0.1))
    assert best_depths([strong, weak], costs) == [6, 0]
    assert best_depths([strong] * 2, costs) == [3, 3]
    assert best_depths([[]], costs) == [0]


def test_a_sequence_that_was_not_drafted_for_is_with_the_others_again() -> None:
    reach = ChainReach(4, 0.6)
    for _ in range(60):
        reach.step += 1
        reach.learn(0, 4, 0)
        reach.learn(1, 4, 4)
    shared = reach.reach(2, 4)
    assert reach.reach(0, 4)[0] < shared[0] < reach.reach(1, 4)[0]
    reach.step += 300
    assert reach.reach(0, 4) == pytest.approx(shared, rel=0.05)
    reach.close(1)
    assert reach.reach(1, 4) == pytest.approx(reach.reach(2, 4))


trials = st.lists(st.tuples(st.integers(0, 2), st.integers(0, 4), st.integers(0, 4)), max_size=60)


@given(trials)
def test_chances_are_those_of_every_trial_weighed_by_its_age(
    seen: list[tuple[int, int, int]],
) -> None:
    """Per step one sequence has a chain of so many tokens, of which so many stand."""
    reach = ChainReach(4, 0.6)
    for step, (id, drafted, accepted) in enumerate(seen):
        reach.step = step
        reach.learn(id, drafted, min(drafted, accepted))

    def counted(depth: int, id: int | None) -> tuple[float, float]:
        stood = tried = 0.0
        own = [(age, each) for age, each in enumerate(reversed(seen)) if id in (None, each[0])]
        gumbel_argmax = 0
        for age, (_, drafted, accepted) in own:
            if drafted > depth and accepted >= depth:
                weight = 0.98 ** (gumbel_argmax if id is None else age)
                tried += weight
                stood += weight * (min(drafted, accepted) > depth)
                gumbel_argmax += 1
        return stood, tried

    for id in range(3):
        rate, chance = 0.6, 1.0
        expected = []
        for depth in range(4):
            stood, tried = counted(depth, None)
            rate = (stood + 8 * rate) / (tried + 8)
            stood, tried = counted(depth, id)
            chance *= (stood + 4 * rate) / (tried + 4)
            expected.append(chance)
        assert reach.reach(id, 4) == pytest.approx(expected)
        assert reach.reach(id, 2) == pytest.approx(expected[:2])


def drawn(length: int) -> TokenTree:
    rows = {node: from_dense(np.full(4, 0.25)) for node in range(ROOT, length - 1)}
    return trees.chain([1] * length, sampling=DraftSampling("iid", rows)) if length else trees.EMPTY


def play(
    controller: CostModelController, sequences: list[Generation], rates: list[float], steps: int
) -> list[list[int]]:
    """Lengths of drawn chains by step, each token of sequence i standing with chance `rates[i]`."""
    generator = np.random.default_rng(3)
    lengths = []
    for _ in range(steps):
        budgets = controller.budgets(sequences)
        lengths.append([min(budget.nodes, budget.depth) for budget in budgets])
        drafts = list(map(drawn, lengths[-1]))
        assert controller.select(sequences, drafts) == drafts  # nothing is cut after it is drawn
        stood = [
            int(np.cumprod(generator.random(n) < rate).sum())
            for n, rate in zip(lengths[-1], rates, strict=True)
        ]
        verdicts = [Verdict(tuple(range(n)), 0) for n in stood]
        rows = len(sequences) + sum(lengths[-1])
        controller.observe(step_of(sequences, drafts, verdicts), 0.0, controller.costs.time(rows))
    return lengths


def test_drawn_drafts_get_ragged_depths_by_what_stood() -> None:
    controller = CostModelController(knee())
    controller.select(batch(1), [drawn(2)])
    lengths = play(controller, batch(3), [0.95, 0.5, 0.05], 120)
    late = np.mean(lengths[60:], axis=0)
    assert late[0] > late[1] > late[2]


def test_drawn_drafts_fade_out_as_the_batch_fills_the_machine() -> None:
    per_sequence = []
    for size in (1, 4, 8, 16, 32):
        controller = CostModelController(knee())
        controller.select(batch(1), [drawn(2)])
        lengths = play(controller, batch(size), [0.6] * size, 40)
        per_sequence.append(float(np.mean(lengths[20:])))
    assert per_sequence == sorted(per_sequence, reverse=True)
    assert per_sequence[0] >= 3
    assert per_sequence[-1] < 0.1


def test_requests_that_take_no_drafts_leave_their_rows_to_others() -> None:
    costs = CostModel(SIZES, [1.0, 1.0, 1.0, 1.0, 9.0, 18.0])
    controller = CostModelController(costs, chain_acceptance=0.9)
    controller.select(batch(1), [drawn(2)])
    sequences = batch(2)
    sequences[0].speculation = Speculation(enabled=False)
    assert controller.budgets(sequences) == [Budget(0, 0), Budget(6, 6)]


# Trees that are pruned after they are made


def subsets(parents: list[int]) -> list[list[int]]:
    """Every set of nodes that is closed under parents."""
    out = []
    for chosen in product((False, True), repeat=len(parents)):
        nodes = [node for node, taken in enumerate(chosen) if taken]
        if all(parents[n] == ROOT or chosen[parents[n]] for n in nodes):
            out.append(nodes)
    return out


@st.composite
def drafts(draw: st.DrawFn) -> TokenTree:
    parents = [draw(st.integers(ROOT, node - 1)) for node in range(draw(st.integers(0, 4)))]
    scores: list[float] = []
    for parent in parents:
        rate = draw(st.sampled_from([0.05, 0.3, 0.5, 0.8, 1.0]))
        scores.append(rate * (1.0 if parent == ROOT else scores[parent]))
    return TokenTree(np.arange(len(parents)), np.array(parents, np.int64), scores=np.array(scores))


@settings(max_examples=150)
@given(st.lists(drafts(), min_size=1, max_size=3), curves)
def test_pruned_drafts_never_lose_and_seldom_miss_the_best(
    proposed: list[TokenTree], costs: CostModel
) -> None:
    """By enumeration of all that could have been verified."""

    def value(parts: list[TokenTree]) -> float:
        assert all(part.scores is not None for part in parts)
        tokens = len(parts) + sum(float(part.scores.sum()) for part in parts)  # type: ignore[union-attr]
        return tokens / costs.time(len(parts) + sum(map(len, parts)))

    every = [
        [trees.take(draft, np.array(nodes, np.int64)) for nodes in subsets(draft.parents.tolist())]
        for draft in proposed
    ]
    best = max(value(list(each)) for each in product(*every))
    controller = CostModelController(costs)
    controller.queue = 1  # every token counts
    found = value(controller.select(batch(len(proposed)), proposed))
    plain = value([each[0] for each in every])
    assert found >= plain * (1 - 1e-9)
    assert found >= 0.75 * best


def test_what_drafts_save_is_that_of_the_best_size() -> None:
    costs = CostModel(SIZES, [1.0, 1.1, 1.3, 1.7, 2.5, 4.1])
    for ranked in ([], [0.1], [0.9, 0.8, 0.7], [0.5] * 40):
        saved = [
            sum(ranked[:n]) - (costs.time(1 + n) - costs.time(1)) for n in range(len(ranked) + 1)
        ]
        sizing = Sizing()
        sizing.choose(list(accumulate(ranked, initial=1.0)), 1, costs)
        assert sizing.saved == pytest.approx(max(saved))


def test_prompts_read_beside_the_batch_leave_less_room_for_drafts() -> None:
    controller = CostModelController(knee())
    controller.queue = 1
    chain = TokenTree(np.arange(4), np.arange(-1, 3), scores=chances([0.7] * 4))
    sizes = []
    for beside in (0, 4, 64):
        controller.beside = beside
        sizes.append(sum(map(len, controller.select(batch(8), [chain] * 8))))
    assert sizes[0] > sizes[1] > sizes[2] == 0


@pytest.mark.parametrize("roots", [1, 3, 8, 12, 16])
@pytest.mark.parametrize("rate", [0.0, 0.2, 0.8])
def test_no_batch_is_slower_than_plain_decoding_in_the_long_run(roots: int, rate: float) -> None:
    """Drafts whose estimates are too high, a machine that fills up."""
    costs = CostModel((1, 4, 8, 12, 16), [1.0, 1.1, 1.3, 1.6, 2.0])
    truth = CostModel(costs.sizes, list(costs.seconds))
    controller, sequences = CostModelController(costs), batch(roots)
    generator = np.random.default_rng(roots)
    draft = TokenTree(np.arange(4), np.arange(-1, 3), scores=chances([0.6] * 4))
    tokens, seconds = 0.0, 0.0
    for _ in range(400):
        budgets = controller.budgets(sequences)
        drafts = [draft if budget.nodes else trees.EMPTY for budget in budgets]
        chosen = controller.select(sequences, drafts)
        stood = [int(np.cumprod(generator.random(len(each)) < rate).sum()) for each in chosen]
        spent = truth.time(roots + sum(map(len, chosen)))
        token = int(draft.tokens[0]) if generator.random() < rate else 99
        verdicts = [Verdict(tuple(range(n)), token) for n in stood]
        controller.observe(step_of(sequences, chosen, verdicts), 0.0, spent)
        tokens += roots + sum(stood)
        seconds += spent
    assert tokens / seconds >= 0.97 * roots / truth.time(roots)


def test_a_batch_that_never_pays_stops_asking_for_drafts_that_cost_time() -> None:
    controller = CostModelController(CostModel(SIZES, [float(size) for size in SIZES]))
    sequences = batch(8)
    weak = TokenTree(np.arange(2), np.arange(-1, 1), scores=chances([0.4, 0.4]))
    asked = []
    for _ in range(600):
        budgets = controller.budgets(sequences)
        drafts = [weak if budget.nodes else trees.EMPTY for budget in budgets]
        chosen = controller.select(sequences, drafts)
        asked.append(budgets[0].nodes > 0)
        took = 0.5 if asked[-1] else 0.0
        controller.observe(step_of(sequences, chosen, [Verdict((), 0)] * 8), took, 8.0)
    assert asked[0]
    assert np.mean(asked[-320:]) == 1 / 16


def test_a_drafter_that_finds_nothing_for_long_is_asked_less_until_it_finds_something() -> None:
    controller = CostModelController(CostModel(SIZES, [1.0] * 6))
    [sequence] = batch(1)
    strong = TokenTree(np.arange(4), np.arange(-1, 3), scores=chances([0.9] * 4))

    def asked(found: TokenTree) -> bool:
        [budget] = controller.budgets([sequence])
        draft = found if budget.nodes else trees.EMPTY
        chosen = controller.select([sequence], [draft])
        verdict = Verdict(tuple(range(len(chosen[0]))), 99)
        controller.observe(
            step_of([sequence], chosen, [verdict]), 0.01 if budget.nodes else 0.0, 1.0
        )
        return budget.nodes > 0

    nothing = [asked(trees.EMPTY) for _ in range(300)]
    assert all(nothing[:40])
    assert sum(nothing[-64:]) == 4
    assert sum([asked(strong) for _ in range(40)][-20:]) >= 18  # but for a plain step
