"""Trees from trained networks: exact laws, zero off the draft vocabulary, one call per level."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
import pytest
from tests.drafters.table_runner import TableRunner
from tests.helpers.drafter_context import context as drafter_context

from paceline.core import tree as trees
from paceline.core.types import Budget, LogitArray, Needs, SamplingParams, TokenTree
from paceline.drafters.network.drafter import TrainedDrafter
from paceline.drafters.network.trees import TreeDrafts, draft_sampling
from paceline.engine.loop import AutoregressiveDecoder
from paceline.engine.stopping import StopRules
from paceline.errors import InvalidOption
from paceline.methods.networks.ctc import CTC, CTCDrafter
from paceline.methods.networks.draft_lm import DraftLMDrafter
from paceline.models.config import ModelConfig
from paceline.networks.weights import Trained
from paceline.policy.controller import Fixed
from paceline.proof.compare import max_error, target_joint
from paceline.proof.oracle import enumerate_distribution
from paceline.proof.tabular import TabularModel, TabularTarget, processed
from paceline.sampling.generation import Generation
from paceline.sampling.randomness import Randomness
from paceline.sampling.sampler import Sampler
from paceline.trees.base import TreeExpansion
from paceline.trees.choice import named_expansion
from paceline.trees.deterministic import ExpandRerank
from paceline.trees.drawn import Branching, Iid, Paths, TopAndOne
from paceline.trees.dyspec import Dynamic, Threshold
from paceline.verifiers.base import Verifier
from paceline.verifiers.k_seq import KSeq
from paceline.verifiers.matching import Coupled, Greedy, SampleMatch
from paceline.verifiers.recursive import Recursive, RecursiveDistinct
from paceline.verifiers.rejection import Rejection
from paceline.verifiers.top_and_one import TopAndOne as OptimalTopAndOne

SIZE = 6
IDS = np.array([0, 2, 3, 5])
BIG, SMALL = (TabularModel(SIZE, 2, seed, 1.5) for seed in (1, 2))
SAMPLED = SamplingParams(temperature=1.0, max_new_tokens=30, seed=4)


def drafter_of(
    runner: TableRunner, growth: TreeExpansion, kind: type[TrainedDrafter] = DraftLMDrafter
) -> TrainedDrafter:
    drafter = kind(runner)
    drafter.expand_by(TreeDrafts(runner, runner.trained, growth))
    return drafter


def drafts_of(
    runner: TableRunner, growth: TreeExpansion, params: SamplingParams, budgets: list[Budget]
) -> tuple[list[Generation], list[TokenTree]]:
    """First drafts of a batch."""
    drafter = drafter_of(runner, growth)
    prompts = [[3, 1], [2], [1, 1, 5], [0, 4]]
    sequences = [Generation.start(i, p, params) for i, p in enumerate(prompts[: len(budgets)])]
    for sequence in sequences:
        drafter.open(sequence)
    return sequences, drafter.propose(sequences, budgets)


def generate(
    runner: TableRunner,
    growth: TreeExpansion,
    verifier: Verifier,
    sequence: Generation,
    p: TabularModel,
    kind: type[TrainedDrafter] = DraftLMDrafter,
) -> list[int]:
    """The shipped loop and drafter."""
    target = TabularTarget(p.logits, p.vocabulary)
    drafter = drafter_of(runner, growth, kind)
    decoder = AutoregressiveDecoder(target, drafter, verifier, Fixed(3, 2), StopRules((), 4096))
    decoder.open(sequence)
    while sequence.finish_reason is None:
        decoder.step([sequence])
    decoder.close(sequence)
    return sequence.generated


EXACT: list[tuple[Verifier, TreeExpansion]] = [
    (Rejection(), Iid([1])),
    (Recursive(), Iid([2, 1])),
    (KSeq(), Paths(2)),
    (RecursiveDistinct(), Branching([2, 1])),
    (RecursiveDistinct(), Dynamic()),
    (RecursiveDistinct(), Threshold(0.3)),
    (OptimalTopAndOne(), TopAndOne([2, 1])),
    (SampleMatch(), ExpandRerank(2)),
    (SampleMatch(), named_expansion("static-medusa")),
]


@pytest.mark.parametrize("width", [1, 2])
@pytest.mark.parametrize(
    ("verifier", "growth"), EXACT, ids=lambda value: getattr(value, "name", "")
)
def test_the_output_law_is_the_target_s(
    verifier: Verifier, growth: TreeExpansion, width: int
) -> None:
    """By enumeration over two rounds; the network cannot draft one of three tokens."""
    p, q = TabularModel(3, 1, seed=11), TabularModel(3, 1, seed=12)
    params = SamplingParams(temperature=0.8, max_new_tokens=3, presence_penalty=0.5)

    def run(randomness: Randomness) -> tuple[int, ...]:
        sequence = Generation.start(0, [1], params)
        sequence.randomness = randomness
        runner = TableRunner(q, np.array([0, 2]), width=width)
        return tuple(generate(runner, growth, verifier, sequence, p))

    wanted = target_joint(processed(p.logits, params, [1]), (1,), 3)
    assert max_error(enumerate_distribution(run), wanted) < 1e-12


def test_rows_that_claim_more_tokens_than_were_drawn_from_break_the_law() -> None:
    """Negative control: the network's own law in place of its part over the draft vocabulary."""
    p, q = TabularModel(3, 1, seed=11), TabularModel(3, 1, seed=12)
    params = SamplingParams(temperature=1.0, max_new_tokens=2)

    class Boastful(TrainedDrafter):
        name = "draft-lm"
        needs = Needs()

        def propose(
            self, sequences: Sequence[Generation], budgets: Sequence[Budget]
        ) -> list[TokenTree]:
            [draft] = super().propose(sequences, budgets)
            if draft.sampling is None:
                return [draft]
            context = tuple(sequences[0].tokens)
            rows = {
                parent: q.distribution((*context, *draft.tokens[: parent + 1].tolist()))
                for parent in draft.sampling.rows
            }
            return [replace(draft, sampling=replace(draft.sampling, rows=rows))]

    def run(kind: type[TrainedDrafter], randomness: Randomness) -> tuple[int, ...]:
        sequence = Generation.start(0, [1], params)
        sequence.randomness = randomness
        runner = TableRunner(q, np.array([0, 2]))
        return tuple(generate(runner, Iid([1]), Rejection(), sequence, p, kind))

    wanted = target_joint(p.distribution, (1,), 2)
    errors = [
        max_error(enumerate_distribution(partial(run, kind)), wanted)
        for kind in (DraftLMDrafter, Boastful)
    ]
    assert errors[0] < 1e-12
    assert errors[1] > 1e-2


@pytest.mark.parametrize(
    "growth", [Iid([1]), Branching([2, 1, 2]), Dynamic()], ids=["iid", "branching", "dynamic"]
)
@pytest.mark.parametrize("width", [1, 3])
def test_reported_rows_are_the_processed_laws_over_the_draft_vocabulary(
    growth: TreeExpansion, width: int
) -> None:
    params = replace(SAMPLED, top_k=3, temperature=0.7, repetition_penalty=1.3)
    runner = TableRunner(SMALL, IDS, steps=3, width=width)
    budgets = [Budget(9, 4), Budget(1, 1), Budget(0, 0), Budget(4, 3)]
    sequences, drafts = drafts_of(runner, growth, params, budgets)
    assert [len(draft) > 0 for draft in drafts] == [True, True, False, True]
    outside = [token for token in range(SIZE) if token not in IDS]
    for sequence, draft, budget in zip(sequences, drafts, budgets, strict=True):
        trees.validate(draft)
        assert len(draft) <= budget.nodes
        assert trees.depths(draft).max(initial=0) <= budget.depth
        assert set(draft.tokens.tolist()) <= set(IDS.tolist())

        def logits(context: tuple[int, ...], begin: int = len(sequence.tokens)) -> LogitArray:
            drafted = len(context) - begin
            whole = context[: begin + drafted - drafted % width]
            row = SMALL.logits((*whole, *[0] * (drafted % width))).copy()
            row[outside] = -np.inf
            return row

        distribution = processed(logits, params, sequence.tokens)
        for parent, row in (draft.sampling.rows if draft.sampling else {}).items():
            path = draft.tokens[list(trees.path_to(draft, parent))].tolist()
            assert (row.dense()[outside] == 0).all()
            np.testing.assert_allclose(
                row.dense(), distribution((*sequence.tokens, *path)).dense(), rtol=1e-12
            )


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"top_p": 0.8},
        {"min_p": 0.2, "top_k": 2},
        {"temperature": 0.0},
        {"repetition_penalty": 1.5},
        {"presence_penalty": 0.7},
        {"frequency_penalty": 0.7},
        {"logit_bias": {2: 3.0, 4: 9.0}},
        {"banned_tokens": (3, 1)},
    ],
)
@pytest.mark.parametrize("soft", [False, True])
def test_a_law_over_part_of_the_vocabulary_is_that_of_impossible_others(
    changes: dict[str, Any], soft: bool
) -> None:
    sampler = Sampler(replace(SAMPLED, **changes), [2, 3])
    sampler.commit([5])
    row = SMALL.logits((1, 2))
    wide = np.full(SIZE, -np.inf, dtype=np.float32)
    wide[IDS] = row[IDS]
    found = draft_sampling(sampler, row[IDS], IDS, SIZE, [0], soft=soft)
    assert found.size == SIZE
    wanted = sampler.distribution(wide, [0], soft=soft).dense()
    np.testing.assert_allclose(found.dense(), wanted, rtol=1e-12)


def test_a_forced_token_stands_at_its_place_even_if_it_cannot_be_drafted() -> None:
    sampler = Sampler(replace(SAMPLED, forced_tokens={2: 4}), [2, 3])
    sampler.commit([5])
    distributions = [
        draft_sampling(sampler, SMALL.logits((1,))[IDS], IDS, SIZE, path, soft=False)
        for path in ([], [0], [0, 0])
    ]
    assert [distribution.prob(4) for distribution in distributions] == [0, 1, 0]


def test_where_all_drafts_are_banned_there_is_a_law_all_the_same() -> None:
    sampler = Sampler(replace(SAMPLED, banned_tokens=tuple(IDS.tolist())), [1])
    distribution = draft_sampling(sampler, SMALL.logits((1,))[IDS], IDS, SIZE, [], soft=False)
    assert distribution.dense().tolist() == [0, 0.5, 0, 0, 0.5, 0]


def test_a_level_costs_one_call_for_the_whole_batch() -> None:
    runner = TableRunner(SMALL, IDS, steps=4)
    drafts_of(runner, ExpandRerank(2), SamplingParams(), [Budget(20, 4), Budget(20, 2)])
    assert runner.calls == [4, 2, 2]
    pair = TableRunner(SMALL, IDS, steps=2, width=2)
    _, [draft] = drafts_of(pair, ExpandRerank(2), SamplingParams(), [Budget(20, 4)])
    assert pair.calls == [2]
    assert trees.depths(draft).max() == 4
    at_once = TableRunner(SMALL, IDS, steps=1, width=4)
    _, [draft] = drafts_of(
        at_once, named_expansion("static-medusa"), SamplingParams(), [Budget(99, 9)]
    )
    assert at_once.calls == []
    by_depth: dict[int, set[int]] = {}
    for node, depth in enumerate(trees.depths(draft).tolist()):
        by_depth.setdefault(depth, set()).add(int(draft.tokens[node]))
    assert len(by_depth[1]) > 1  # the same candidates hang below all of them: a product
    second = [draft.tokens[draft.parents == parent].tolist() for parent in (0, 1)]
    assert second[1] == second[0][: len(second[1])]


@pytest.mark.parametrize("verifier", [Greedy(), Coupled(), SampleMatch()], ids=lambda v: v.name)
@pytest.mark.parametrize("named", ["expand-rerank-3", "static-recycling", "shared-noise-2.1"])
def test_greedy_texts_are_those_of_plain_decoding(verifier: Verifier, named: str) -> None:
    sequence = Generation.start(0, [1, 4], SamplingParams(max_new_tokens=20))
    found = generate(TableRunner(SMALL, IDS), named_expansion(named), verifier, sequence, BIG)
    context = [1, 4]
    for _ in range(20):
        context.append(int(BIG.logits(tuple(context)).argmax()))
    assert found == context[2:]
    assert sequence.stats.accepted_tokens > 0


def test_scores_are_chances_of_paths_and_pruning_by_them_is_closed() -> None:
    runner = TableRunner(SMALL, IDS)
    [sequence], [draft] = drafts_of(runner, ExpandRerank(3), SamplingParams(), [Budget(9, 3)])
    assert draft.scores is not None
    assert draft.source == "draft-lm"
    for node in range(len(draft)):
        chance, context = 1.0, list(sequence.tokens)
        for each in trees.path_to(draft, node):
            weights = np.exp(SMALL.logits(tuple(context))[IDS].astype(np.float64))
            token = int(draft.tokens[each])
            chance *= float(weights[IDS.tolist().index(token)] / weights.sum())
            context.append(token)
        assert draft.scores[node] == pytest.approx(chance)


CAPABILITIES = TabularTarget(BIG.logits, SIZE).capabilities


def chosen(trained: Trained, verifier: Verifier, **options: str) -> TreeDrafts | None:
    def none() -> Any:
        raise AssertionError("no draft model was named")

    context = drafter_context(
        CAPABILITIES, accepts=verifier.accepts, shape=verifier.shape, options=options
    )
    runner = TableRunner(SMALL, IDS)
    return TreeDrafts.chosen(context, runner, trained)


def test_a_growth_is_chosen_by_name_or_by_what_the_verifier_needs() -> None:
    trained = TableRunner(SMALL, IDS).trained
    assert chosen(trained, Coupled()) is None
    for verifier, kind in ((Rejection(), "iid"), (RecursiveDistinct(), "without_replacement")):
        drafts = chosen(trained, verifier)
        assert drafts is not None
        assert drafts.kind == kind
    named = chosen(trained, Coupled(), growth="expand-rerank-4")
    assert named is not None
    assert named.kind is None


def test_what_cannot_be_grown_is_said() -> None:
    trained = TableRunner(SMALL, IDS).trained
    with pytest.raises(InvalidOption, match="unknown growth 'bush'"):
        chosen(trained, Coupled(), growth="bush")
    with pytest.raises(InvalidOption, match="makes deterministic drafts"):
        chosen(trained, Rejection(), growth="expand-rerank")
    with pytest.raises(InvalidOption, match="leave it out with a growth"):
        chosen(trained, Coupled(), growth="expand-rerank", stop="0.5")
    ctc = Trained(
        CTC(ModelConfig("llama", SIZE, 4, 0, 1, 1, 4, 4, 100.0, 1e-5, 0, False)), {}, IDS, {}
    )
    assert chosen(ctc, Coupled()) is None
    for verifier, options in ((Coupled(), {"growth": "iid"}), (Rejection(), {})):
        with pytest.raises(InvalidOption, match="'ctc' drafts slots that may stay blank"):
            CTCDrafter(TableRunner(SMALL, IDS)).expand_by(chosen(ctc, verifier, **options))
