"""A draft model beside its target: chains and trees, reported laws, rollback, context, batches."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.helpers.decoding_loop import decode
from tests.helpers.drafter_context import context as drafter_context
from tests.helpers.steps import step_of

from paceline.core.target import Output, Rows, Target
from paceline.core.tree import path_to
from paceline.core.types import ROOT, Budget, LogitArray, SamplingParams, TokenTree
from paceline.drafters.base import Drafter, NoDrafter
from paceline.drafters.draft_model import DraftModel, draft_vocabulary
from paceline.engine.loop import AutoregressiveDecoder
from paceline.engine.stopping import StopRules
from paceline.errors import InvalidOption, OutOfMemory
from paceline.policy.controller import Fixed
from paceline.proof.compare import goodness_of_fit, max_error, target_joint
from paceline.proof.oracle import enumerate_distribution
from paceline.proof.tabular import TabularCache, TabularModel, TabularTarget, processed
from paceline.sampling.distributions import gumbel_max
from paceline.sampling.generation import Generation
from paceline.sampling.randomness import Randomness
from paceline.trees.base import TreeExpansion
from paceline.trees.deterministic import SharedNoise
from paceline.trees.drawn import Branching, Iid, Paths, StochasticBeam, TopAndOne
from paceline.trees.dyspec import Dynamic
from paceline.verifiers.base import Verifier
from paceline.verifiers.k_seq import KSeq
from paceline.verifiers.matching import Coupled, Greedy, SampleMatch
from paceline.verifiers.recursive import Recursive, RecursiveDistinct
from paceline.verifiers.rejection import Rejection
from paceline.verifiers.top_and_one import TopAndOne as OptimalTopAndOne

VOCABULARY = 6
BIG = TabularModel(VOCABULARY, 2, seed=1, sharpness=1.5)
SMALL = TabularModel(VOCABULARY, 1, seed=2, sharpness=1.5)
SAMPLED = SamplingParams(temperature=1.0, max_new_tokens=30, seed=4)
CHAINS: list[tuple[Verifier, TreeExpansion]] = [
    (Coupled(), SharedNoise([1])),
    (Rejection(), Iid([1])),
]
TREES: list[tuple[Verifier, TreeExpansion]] = [
    (Coupled(), SharedNoise([1, 2])),
    (Recursive(), Iid([2])),
    (KSeq(), Paths(3)),
    (RecursiveDistinct(), Branching([2, 1, 2])),
    (RecursiveDistinct(), Branching([2], noise=True)),
    (RecursiveDistinct(), StochasticBeam(2)),
    (RecursiveDistinct(), Dynamic()),
    (OptimalTopAndOne(), TopAndOne([2])),
]


class Watched(TabularTarget):
    """Remembers its caches, and the passes it was given with what was cached then."""

    def __init__(self, model: TabularModel, max_context: int = 4096) -> None:
        super().__init__(model.logits, model.vocabulary, max_context)
        self.caches: list[TabularCache] = []
        self.fed: list[tuple[Rows, list[int]]] = []
        self.batches: list[int] = []

    def open(self) -> TabularCache:
        self.caches.append(super().open())
        return self.caches[-1]

    def forward(self, passes: Sequence[Rows]) -> list[Output]:
        self.batches.append(len(passes))
        self.fed += [(each, list(each.cache.tokens)) for each in passes]
        return super().forward(passes)


def decoder_of(
    drafter: Drafter,
    verifier: Verifier,
    depth: int = 4,
    target: Target | None = None,
    nodes: int | None = None,
) -> AutoregressiveDecoder:
    target = target or TabularTarget(BIG.logits, VOCABULARY)
    stops = StopRules((), target.capabilities.max_context)
    return AutoregressiveDecoder(target, drafter, verifier, Fixed(nodes or depth, depth), stops)


def plain(prompts: list[list[int]], params: SamplingParams, verifier: Verifier) -> list[list[int]]:
    return [decode(decoder_of(NoDrafter(), verifier), [p], params)[0].generated for p in prompts]


@pytest.mark.parametrize("temperature", [0.0, 0.7, 1.3])
def test_the_target_itself_is_always_accepted(temperature: float) -> None:
    """Coupled drafting uses the target's own noise, penalties included."""
    drafter = DraftModel(TabularTarget(BIG.logits, VOCABULARY), VOCABULARY, SharedNoise([1]))
    params = SamplingParams(
        temperature, top_p=0.9, repetition_penalty=1.2, max_new_tokens=50, seed=3
    )
    [sequence] = decode(decoder_of(drafter, Coupled()), [[1, 2]], params)
    stats = sequence.stats
    assert stats.accepted_tokens == stats.drafted_tokens == 40
    assert stats.target_forwards == 10  # five tokens each: four drafted and a bonus
    assert [sequence.generated] == plain([[1, 2]], params, Coupled())


@pytest.mark.parametrize("verifier", [Greedy(), Coupled(), SampleMatch()], ids=lambda v: v.name)
def test_a_greedy_request_accepts_the_target_itself_under_every_rule(verifier: Verifier) -> None:
    drafter = DraftModel(TabularTarget(BIG.logits, VOCABULARY), VOCABULARY, SharedNoise([1]))
    [sequence] = decode(decoder_of(drafter, verifier), [[0]], SamplingParams(max_new_tokens=20))
    assert sequence.stats.accepted_tokens == sequence.stats.drafted_tokens == 16


def test_rejection_accepts_the_target_itself() -> None:
    drafter = DraftModel(TabularTarget(BIG.logits, VOCABULARY), VOCABULARY, Iid([1]))
    [sequence] = decode(decoder_of(drafter, Rejection()), [[0]], SAMPLED)
    assert sequence.stats.accepted_tokens == sequence.stats.drafted_tokens > 0


def draft_of(
    params: SamplingParams, growth: TreeExpansion, nodes: int = 3, depth: int = 3
) -> TokenTree:
    drafter = DraftModel(TabularTarget(SMALL.logits, VOCABULARY), VOCABULARY, growth)
    sequence = Generation.start(0, [3, 1], params)
    drafter.open(sequence)
    [draft] = drafter.propose([sequence], [Budget(nodes, depth)])
    return draft


def test_reported_rows_are_the_processed_laws_along_the_chain() -> None:
    params = SamplingParams(temperature=0.8, top_k=3, repetition_penalty=1.3, seed=6)
    draft = draft_of(params, Iid([1]))
    assert draft.sampling is not None
    assert draft.sampling.kind == "iid"
    assert set(draft.sampling.rows) == {ROOT, 0, 1}
    distribution = processed(SMALL.logits, params, [3, 1])
    for parent, row in draft.sampling.rows.items():
        context = (3, 1, *draft.tokens[: parent + 1].tolist())
        np.testing.assert_array_equal(row.dense(), distribution(context).dense())
        assert row.prob(int(draft.tokens[parent + 1])) > 0


def test_every_sequence_of_a_batch_reports_its_own_rows() -> None:
    drafter = DraftModel(TabularTarget(SMALL.logits, VOCABULARY), VOCABULARY, Iid([1]))
    prompts = [[3, 1], [2], [1, 1, 5]]
    sequences = [Generation.start(i, prompt, SAMPLED) for i, prompt in enumerate(prompts)]
    for sequence in sequences:
        drafter.open(sequence)
    drafts = drafter.propose(sequences, [Budget(2, 2), Budget(1, 1), Budget(3, 3)])
    for prompt, draft in zip(prompts, drafts, strict=True):
        assert draft.sampling is not None
        assert set(draft.sampling.rows) == set(range(-1, len(draft) - 1))
        for parent, row in draft.sampling.rows.items():
            context = (*prompt, *draft.tokens[: parent + 1].tolist())
            np.testing.assert_allclose(row.dense(), SMALL.distribution(context).dense(), rtol=1e-12)


def test_greedy_rows_are_one_hot() -> None:
    draft = draft_of(SamplingParams(), Iid([1]))
    assert draft.sampling is not None
    for parent, row in draft.sampling.rows.items():
        assert row.dense().tolist() == np.eye(VOCABULARY)[draft.tokens[parent + 1]].tolist()


def test_a_chain_with_shared_noise_claims_no_law() -> None:
    draft = draft_of(SAMPLED, SharedNoise([1]))
    assert draft.sampling is None
    assert draft.source == "draft-model"


class Trimming(TabularTarget):
    """Gives the logits of some tokens alone; of all for ""."""

    def __init__(self, logits: Any, vocabulary: int, kept: str, ends: tuple[int, ...] = ()):
        super().__init__(logits, vocabulary)
        self.ids = draft_vocabulary(kept, vocabulary, ends) if kept else np.arange(vocabulary)
        head = tuple(self.ids.tolist()) if kept else None
        self._capabilities = replace(self._capabilities, head=head)

    def forward(self, passes: Sequence[Rows]) -> list[Output]:
        outputs = super().forward(passes)
        return [each._replace(logits=each.logits[:, self.ids]) for each in outputs]


def trimmed_model(vocabulary: str, growth: TreeExpansion, ends: tuple[int, ...] = ()) -> DraftModel:
    return DraftModel(Trimming(SMALL.logits, VOCABULARY, vocabulary, ends), VOCABULARY, growth)


@pytest.mark.parametrize("params", [SAMPLED, replace(SAMPLED, repetition_penalty=1.4)])
def test_a_trimmed_draft_model_drafts_what_is_left(params: SamplingParams) -> None:
    """Rows are the processed distributions of the logits that are left; the text is the same."""
    drafter = trimmed_model("3", Iid([1]), ends=(5,))
    sequence = Generation.start(0, [3, 1], params)
    drafter.open(sequence)
    [draft] = drafter.propose([sequence], [Budget(3, 3)])
    assert draft.sampling is not None

    def logits(context: tuple[int, ...]) -> LogitArray:
        whole = SMALL.logits(context).copy()
        whole[[3, 4]] = -np.inf
        return whole

    distribution = processed(logits, params, [3, 1])
    for parent, row in draft.sampling.rows.items():
        context = (3, 1, *draft.tokens[: parent + 1].tolist())
        np.testing.assert_allclose(row.dense(), distribution(context).dense(), rtol=1e-12)
    coupled = decoder_of(trimmed_model("2", SharedNoise([1])), Coupled())
    [done] = decode(coupled, [[1, 2]], params)
    assert [done.generated] == plain([[1, 2]], params, Coupled())
    assert done.stats.drafted_tokens > 0


def test_the_tokens_of_a_trimmed_draft_model_come_from_a_file(tmp_path: Path) -> None:
    kept = tmp_path / "kept.json"
    kept.write_text('{"tokens": [4, 0]}')
    drafter = trimmed_model(str(kept), SharedNoise([1]))
    sequence = Generation.start(0, [3, 1], SAMPLED)
    [draft] = drafter.propose([sequence], [Budget(3, 3)])
    assert set(draft.tokens.tolist()) <= {0, 4}
    for text, error in {
        '{"tokens": [6]}': "below 6",
        '{"tokens": []}': "below 6",
        "[]": "nor a file|neither",
        '{"tokens": "x"}': "neither",
    }.items():
        kept.write_text(text)
        with pytest.raises(InvalidOption, match=error):
            trimmed_model(str(kept), SharedNoise([1]))
    for name in ("0", "-1", str(tmp_path / "none.json")):
        with pytest.raises(InvalidOption, match="neither a number"):
            trimmed_model(name, SharedNoise([1]))


TINY = TabularModel(3, 1, seed=11), TabularModel(3, 1, seed=12)


def generate_tiny(
    verifier: Verifier,
    growth: TreeExpansion,
    params: SamplingParams,
    randomness: Randomness,
    nodes: int = 2,
    depth: int = 2,
    vocabulary: str = "",
) -> list[int]:
    """The shipped loop and drafter on tables of three tokens."""
    big, small = TabularTarget(TINY[0].logits, 3), Trimming(TINY[1].logits, 3, vocabulary)
    drafter = DraftModel(small, 3, growth)
    decoder = decoder_of(drafter, verifier, depth, big, nodes)
    sequence = Generation.start(0, [1], params)
    sequence.randomness = randomness
    decoder.open(sequence)
    while sequence.finish_reason is None:
        decoder.step([sequence])
    decoder.close(sequence)
    return sequence.generated


@pytest.mark.parametrize("temperature", [1.0, 0.6])
@pytest.mark.parametrize("vocabulary", ["", "2"])
def test_with_rejection_the_output_law_is_the_target_s(temperature: float, vocabulary: str) -> None:
    """By enumeration of all draws over several rounds, with tokens that are never drafted, too."""
    params = SamplingParams(temperature=temperature, max_new_tokens=3, presence_penalty=0.5)
    found = enumerate_distribution(
        lambda r: tuple(generate_tiny(Rejection(), Iid([1]), params, r, vocabulary=vocabulary))
    )
    wanted = target_joint(processed(TINY[0].logits, params, [1]), (1,), 3)
    assert max_error(found, wanted) < 1e-12


@pytest.mark.parametrize(
    ("verifier", "growth", "nodes"),
    [
        (Recursive(), Iid([2]), 2),
        (KSeq(), Paths(2), 2),
        (RecursiveDistinct(), Branching([2]), 3),
        (RecursiveDistinct(), Dynamic(), 3),
        (OptimalTopAndOne(), TopAndOne([2]), 3),
    ],
    ids=lambda value: getattr(value, "name", ""),
)
def test_with_trees_the_output_law_is_the_target_s(
    verifier: Verifier, growth: TreeExpansion, nodes: int
) -> None:
    """Through caches, forwards with a draft, processed laws, and two rounds of the loop."""
    params = SamplingParams(temperature=0.8, top_p=0.95, max_new_tokens=3, presence_penalty=0.5)
    found = enumerate_distribution(
        lambda r: tuple(generate_tiny(verifier, growth, params, r, nodes))
    )
    wanted = target_joint(processed(TINY[0].logits, params, [1]), (1,), 3)
    assert max_error(found, wanted) < 1e-12


@pytest.mark.parametrize(
    ("verifier", "width"),
    [(Coupled(), 1), (Coupled(), 2), (SampleMatch(), 2)],
    ids=["coupled-1", "coupled-2", "sample-match-2"],
)
def test_with_noise_the_output_law_is_the_target_s(verifier: Verifier, width: int) -> None:
    counts: Counter[tuple[int, ...]] = Counter()
    growth = SharedNoise([width])
    for seed in range(400):
        params = SamplingParams(temperature=1.0, max_new_tokens=2, seed=seed)
        randomness = Generation.start(0, [1], params).randomness
        counts[tuple(generate_tiny(verifier, growth, params, randomness, 2 * width))] += 1
    distribution = processed(TINY[0].logits, SamplingParams(temperature=1.0), [1])
    assert goodness_of_fit(counts, target_joint(distribution, (1,), 2)) > 1e-4


class Checked(DraftModel):
    """Compares what it fed, and the rows it reports, with the committed tokens."""

    def __init__(self, model: Watched, growth: TreeExpansion) -> None:
        super().__init__(model, VOCABULARY, growth)
        self.watched = model

    def propose(
        self, sequences: Sequence[Generation], budgets: Sequence[Budget]
    ) -> list[TokenTree]:
        self.watched.fed.clear()
        drafts = super().propose(sequences, budgets)
        for sequence, draft in zip(sequences, drafts, strict=True):
            self.check_passes(sequence, draft)
            self.check_rows(sequence, draft)
        return drafts

    def check_passes(self, sequence: Generation, draft: TokenTree) -> None:
        """Committed tokens come first, and then nodes of the draft in paths of the draft."""
        cache = self.watched.caches[sequence.id]
        paths = {tuple(draft.tokens[list(path_to(draft, n))].tolist()) for n in range(len(draft))}
        for each, before in self.watched.fed:
            if each.cache is cache:
                known = [*before, *each.tokens[: each.num_new]]
                assert known[: len(sequence.tokens)] == sequence.tokens
                trunk = tuple(known[len(sequence.tokens) :])
                assert not trunk or trunk in paths
                fed = each.tree
                for node in range(len(fed) if fed is not None else 0):
                    below = fed.tokens[list(path_to(fed, node))].tolist()
                    assert (*trunk, *below) in paths

    def check_rows(self, sequence: Generation, draft: TokenTree) -> None:
        """Rows are the small model's laws; shared noise picks what its law and the noise say."""
        distribution = processed(
            SMALL.logits, sequence.params, sequence.tokens[: sequence.prompt_length]
        )
        for parent in set(draft.parents.tolist()):
            path = path_to(draft, parent)
            wanted = distribution((*sequence.tokens, *draft.tokens[list(path)].tolist()))
            if draft.sampling is not None:
                row = draft.sampling.rows[parent]
                np.testing.assert_array_equal(row.dense(), wanted.dense())
            else:
                first = int(draft.tokens[np.flatnonzero(draft.parents == parent)[0]])
                position = len(sequence.tokens) + len(path)
                assert first == gumbel_max(wanted, position, sequence.randomness)


@settings(max_examples=25)
@given(
    st.lists(
        st.lists(st.integers(0, VOCABULARY - 1), min_size=1, max_size=9), min_size=1, max_size=4
    ),
    st.integers(1, 6),
    st.integers(1, 9),
    st.sampled_from(CHAINS + TREES),
    st.integers(0, 99),
)
def test_the_draft_model_sees_what_was_committed_and_drafted(
    prompts: list[list[int]],
    depth: int,
    nodes: int,
    rule: tuple[Verifier, TreeExpansion],
    seed: int,
) -> None:
    """Rollback after zero, partial and full acceptance, in ragged batches, chains and trees."""
    verifier, growth = rule
    small = Watched(SMALL)
    drafter = Checked(small, growth)
    params = SamplingParams(
        temperature=1.0, top_k=4, presence_penalty=0.3, max_new_tokens=15, seed=seed
    )
    sequences = decode(decoder_of(drafter, verifier, depth, nodes=nodes), prompts, params)
    assert all(cache.released for cache in small.caches)
    if verifier.name == "coupled":
        assert [s.generated for s in sequences] == plain(prompts, params, verifier)


@settings(max_examples=10)
@given(st.integers(1, 6), st.sampled_from(CHAINS), st.integers(0, 99))
def test_a_chain_costs_one_row_per_token(
    depth: int, rule: tuple[Verifier, TreeExpansion], seed: int
) -> None:
    """Drafted tokens stay in the cache, and two rows are fed after a full acceptance: the bonus
    and the last drafted token."""
    small = Watched(SMALL)
    params = SamplingParams(temperature=1.0, max_new_tokens=20, seed=seed)
    drafter = DraftModel(small, VOCABULARY, rule[1])
    decode(decoder_of(drafter, rule[0], depth), [[1, 2], [3]], params)
    assert all(each.tree is None for each, _ in small.fed)
    assert {each.num_new for each, _ in small.fed} <= {1, 2}


def test_the_trunk_of_a_tree_is_fed_once() -> None:
    """Two levels without a choice, then branches: these alone are fed again, as a draft."""
    small = Watched(SMALL)
    drafter = DraftModel(small, VOCABULARY, Branching([1, 1, 2, 2]))
    sequence = Generation.start(0, [1, 2, 3], SAMPLED)
    drafter.open(sequence)
    [draft] = drafter.propose([sequence], [Budget(20, 5)])
    assert draft.parents.tolist()[:6] == [ROOT, 0, 1, 1, 2, 2]
    assert [each.num_new for each, _ in small.fed] == [1, 1, 1, 1, 1]
    assert [0 if p.tree is None else len(p.tree) for p, _ in small.fed] == [0, 0, 0, 2, 6]
    assert small.caches[0].tokens == [1, 2, 3, int(draft.tokens[0])]  # the trunk's end is a root


def test_a_trunk_that_gets_a_branch_later_is_given_up() -> None:
    """Dynamic growth may come back to the root; what was cached below must not survive it."""
    small = Watched(SMALL)
    drafter = DraftModel(small, VOCABULARY, Dynamic())
    came_back = 0
    for seed in range(40):
        prompt = [1, 2, seed % VOCABULARY]
        sequence = Generation.start(seed, prompt, SamplingParams(temperature=1.0, seed=seed))
        drafter.open(sequence)
        [draft] = drafter.propose([sequence], [Budget(4, 3)])
        cache = small.caches[seed]
        if draft.parents.tolist()[:2] == [ROOT, 0] and ROOT in draft.parents[2:].tolist():
            came_back += 1
            assert cache.tokens == prompt[: cache.length]
    assert came_back > 3


def test_the_draft_model_lags_after_full_acceptance() -> None:
    small = Watched(BIG)
    drafter = DraftModel(small, VOCABULARY, SharedNoise([1]))
    decode(decoder_of(drafter, Greedy(), depth=2), [[0]], SamplingParams(max_new_tokens=9))
    assert [each.num_new for each, _ in small.fed] == [1, 1, 2, 1, 2, 1]


def test_one_forward_per_level_for_the_whole_batch() -> None:
    small = Watched(SMALL)
    drafter = DraftModel(small, VOCABULARY, SharedNoise([1]))
    sequences = [Generation.start(i, [i, 1], SAMPLED) for i in range(3)]
    for sequence in sequences:
        drafter.open(sequence)
    drafts = drafter.propose(sequences, [Budget(3, 3), Budget(0, 0), Budget(5, 1)])
    assert [len(draft) for draft in drafts] == [3, 0, 1]
    assert small.batches == [2, 1, 1]


@pytest.mark.parametrize("rows", [VOCABULARY - 2, VOCABULARY - 1, VOCABULARY + 3])
@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_a_head_of_another_size_drafts_what_both_have(rows: int, temperature: float) -> None:
    """The same vocabulary, padded otherwise: ids that one lacks are neither drafted nor read."""
    drafted: list[int] = []

    class Padded(Watched):
        """The target's own table; what that lacks would be the likeliest."""

        def forward(self, passes: Sequence[Rows]) -> list[Output]:
            for each in passes:
                drafted.extend(() if each.tree is None else each.tree.tokens)
                assert max(each.tokens) < rows
            out = super().forward(passes)
            for each in out:
                each.logits[:, VOCABULARY:] = 99.0
            return out

    def logits(path: tuple[int, ...]) -> LogitArray:
        wide = np.zeros(rows, np.float32)
        shared = min(rows, VOCABULARY)
        wide[:shared] = BIG.logits(path)[:shared]
        return wide

    model = TabularModel(VOCABULARY, 2, seed=1)
    small = Padded(model)
    TabularTarget.__init__(small, logits, rows)
    drafter = DraftModel(small, VOCABULARY, SharedNoise([1, 2]))
    params = SamplingParams(temperature=temperature, max_new_tokens=40, seed=3)
    [sequence] = decode(decoder_of(drafter, Coupled()), [[5, 1]], params)
    assert [sequence.generated] == plain([[5, 1]], params, Coupled())
    assert sequence.stats.accepted_tokens > 5
    assert all(token < min(rows, VOCABULARY) for token in drafted)


@pytest.mark.parametrize("width", [1, 2])
@pytest.mark.parametrize("context", [4, 10, 25])
@pytest.mark.parametrize("prompt", [[0], [0, 1, 2], [0, 1, 2, 3], [1] * 5, [2] * 12])
def test_a_shorter_context_limits_the_depth(context: int, prompt: list[int], width: int) -> None:
    """Also where the prompt alone is longer than the draft model's context."""
    small = Watched(SMALL, max_context=context)
    drafter = DraftModel(small, VOCABULARY, SharedNoise([width]))
    [sequence] = decode(decoder_of(drafter, Coupled(), nodes=4 * width), [prompt], SAMPLED)
    assert [sequence.generated] == plain([prompt], SAMPLED, Coupled())
    assert all(len(before) + each.num_new <= context for each, before in small.fed)


def test_a_failed_step_can_be_repeated() -> None:
    """The target fails between propose and observe; the draft model must not run ahead."""

    class Failing(TabularTarget):
        failures = 0

        def forward(self, passes: Sequence[Rows]) -> list[Output]:
            self.failures += 1
            if self.failures % 2:
                raise OutOfMemory("no room: try again")
            return super().forward(passes)

    for verifier, growth in CHAINS + TREES:
        small = TabularTarget(SMALL.logits, VOCABULARY)
        drafter = DraftModel(small, VOCABULARY, growth)
        target = Failing(BIG.logits, VOCABULARY)
        decoder = decoder_of(drafter, verifier, target=target)
        sequence = Generation.start(0, [1, 2], SAMPLED)
        decoder.open(sequence)
        while sequence.finish_reason is None:
            with pytest.raises(OutOfMemory):
                decoder.step([sequence])
            decoder.step([sequence])
        if verifier.name == "coupled":
            assert [sequence.generated] == plain([[1, 2]], SAMPLED, verifier)


def test_a_draft_model_without_memory_leaves_no_cache_behind() -> None:
    class Full(Watched):
        def prefill(
            self, cache: TabularCache, tokens: Sequence[int], features: bool = False
        ) -> None:
            raise OutOfMemory("no room: use shorter prompts")

    big, small = Watched(BIG), Full(SMALL)
    decoder = decoder_of(DraftModel(small, VOCABULARY, SharedNoise([1])), Coupled(), target=big)
    sequence = Generation.start(0, [1, 2, 3], SAMPLED)
    decoder.open(sequence)
    with pytest.raises(OutOfMemory):
        decoder.step([sequence])
    assert [cache.released for cache in small.caches] == [True]
    decoder.close(sequence)
    assert all(cache.released for cache in big.caches)


def test_nothing_is_read_until_a_draft_is_wanted() -> None:
    """As in a batch where drafts do not pay; what was committed meanwhile is read then."""
    small = Watched(SMALL)
    drafter = DraftModel(small, VOCABULARY, SharedNoise([1]))
    sequence = Generation.start(0, [1, 2, 3], SAMPLED)
    drafter.open(sequence)
    [draft] = drafter.propose([sequence], [Budget(0, 0)])
    assert not len(draft)
    drafter.observe(step_of([sequence], [draft]))
    assert not small.caches
    sequence.tokens += [4, 0, 2]
    sequence.sampler.commit([4, 0, 2])
    [draft] = drafter.propose([sequence], [Budget(3, 3)])
    assert small.caches[0].tokens == [1, 2, 3, 4, 0, 2, *draft.tokens[:2].tolist()]


@pytest.mark.parametrize("length", [3, 19, 20, 21, 60])
def test_of_a_long_prompt_only_the_end_is_read(length: int) -> None:
    small, prompt = Watched(SMALL), [each % VOCABULARY for each in range(length)]
    drafter = DraftModel(small, VOCABULARY, SharedNoise([1]), recent=20)
    sequence = Generation.start(0, prompt, SAMPLED)
    drafter.open(sequence)
    [draft] = drafter.propose([sequence], [Budget(3, 3)])
    cached = small.caches[0].tokens
    assert cached == [*prompt, *draft.tokens[:2].tolist()][-len(cached) :]
    assert len(cached) == min(length, 20) + 2
    drafter.close(sequence)
    [sequence] = decode(decoder_of(drafter, Coupled()), [prompt], SAMPLED)
    assert [sequence.generated] == plain([prompt], SAMPLED, Coupled())


def test_a_draft_that_may_be_the_only_one_reads_little() -> None:
    """More is read once drafts are asked for again and again, and what was missed while they are
    not; the drafter says beforehand how much that is."""
    small = Watched(SMALL)
    drafter = DraftModel(small, VOCABULARY, SharedNoise([1]), recent=150)
    sequence = Generation.start(0, [each % VOCABULARY for each in range(200)], SAMPLED)
    drafter.open(sequence)

    def draft() -> tuple[int, int]:
        """Tokens that it said it would read, and those before the root that it knows."""
        said, known = drafter.unread(sequence), len(sequence.tokens) - 1
        [made] = drafter.propose([sequence], [Budget(1, 1)])
        drafter.observe(step_of([sequence], [made]))
        begin = drafter._begins[sequence.id]
        assert small.caches[-1].tokens == sequence.tokens[begin : known + 1][: known - begin]
        sequence.tokens.append(0)
        sequence.sampler.commit([0])
        return said, known - begin

    assert draft() == (63, 63)
    assert [draft() for _ in range(7)] == [(1, 63 + more) for more in range(1, 8)]
    assert draft() == (149, 149)
    sequence.tokens += [1] * 100
    assert draft() == (101, 250)
    sequence.tokens += [1] * 200
    assert draft() == (149, 149)


def test_close_releases_once_and_may_be_repeated() -> None:
    small = Watched(SMALL)
    drafter = DraftModel(small, VOCABULARY, SharedNoise([1]))
    sequence = Generation.start(0, [1, 2], SAMPLED)
    drafter.open(sequence)
    drafter.close(sequence)
    drafter.open(sequence)
    drafter.propose([sequence], [Budget(2, 2)])
    drafter.close(sequence)
    drafter.close(sequence)
    assert [cache.released for cache in small.caches] == [True]


def test_a_named_growth_is_used_and_greedy_requests_get_branches() -> None:
    target = TabularTarget(TabularModel(6, 2, 1).logits, 6)
    context = drafter_context(target, lambda: target, options={"growth": "expand-rerank-3"})
    drafter = DraftModel.create(context)
    drafter.open(sequence := Generation.start(0, [0], SamplingParams()))
    [draft] = drafter.propose([sequence], [Budget(6, 3)])
    assert len(draft) == 6
    assert len(set(draft.parents.tolist())) < 6  # some node has two children
    assert draft.scores is not None
    with pytest.raises(InvalidOption, match="use growth, recent or vocabulary"):
        DraftModel.create(replace(context, options={"size": "3"}))
    with pytest.raises(InvalidOption, match="recent must be 1 or more"):
        DraftModel.create(replace(context, options={"recent": "0"}))
