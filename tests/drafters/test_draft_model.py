"""A draft model beside its target: acceptance, reported laws, rollback, context, batches."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence as List

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from paceline.controllers.fixed import Fixed
from paceline.decode.autoregressive import AutoregressiveDecoder
from paceline.drafters.base import Drafter, DrafterContext
from paceline.drafters.draft_model import DraftModel
from paceline.drafters.none import NoDrafter
from paceline.errors import InvalidOption, OutOfMemory
from paceline.exactness.compare import goodness_of_fit, max_error, target_joint
from paceline.exactness.oracle import enumerate_law
from paceline.exactness.tabular import TabularCache, TabularModel, TabularTarget, processed
from paceline.randomness import Randomness
from paceline.sequence import Sequence
from paceline.stopping import StopRules
from paceline.target import Output, Pass, Target
from paceline.types import ROOT, Budget, Law, SamplingParams, TokenTree
from paceline.verifiers.base import Verifier
from paceline.verifiers.coupled import Coupled
from paceline.verifiers.greedy import Greedy
from paceline.verifiers.rejection import Rejection
from paceline.verifiers.sample_match import SampleMatch

VOCABULARY = 6
BIG = TabularModel(VOCABULARY, 2, seed=1, sharpness=1.5)
SMALL = TabularModel(VOCABULARY, 1, seed=2, sharpness=1.5)
SAMPLED = SamplingParams(temperature=1.0, max_new_tokens=30, seed=4)


class Watched(TabularTarget):
    """Remembers its caches and the passes it was given."""

    def __init__(self, model: TabularModel, max_context: int = 4096) -> None:
        super().__init__(model.logits, model.vocabulary, max_context)
        self.caches: list[TabularCache] = []
        self.batches: list[list[Pass]] = []

    def open(self) -> TabularCache:
        self.caches.append(super().open())
        return self.caches[-1]

    def forward(self, passes: List[Pass], rows: int = 0) -> list[Output]:
        self.batches.append(list(passes))
        return super().forward(passes, rows)


def decoder_of(
    drafter: Drafter, verifier: Verifier, depth: int = 4, target: Target | None = None
) -> AutoregressiveDecoder:
    target = target or TabularTarget(BIG.logits, VOCABULARY)
    stops = StopRules((), target.capabilities.max_context)
    return AutoregressiveDecoder(target, drafter, verifier, Fixed(depth, depth), stops)


def run(
    decoder: AutoregressiveDecoder, prompts: list[list[int]], params: SamplingParams
) -> list[Sequence]:
    """Decode a batch to its end."""
    sequences = [Sequence.start(i, prompt, params) for i, prompt in enumerate(prompts)]
    for sequence in sequences:
        decoder.open(sequence)
    running = sequences
    while running:
        for commit in decoder.step(running):
            if commit.finish_reason:
                decoder.close(commit.sequence)
        running = [s for s in running if s.finish_reason is None]
    return sequences


def plain(prompts: list[list[int]], params: SamplingParams, verifier: Verifier) -> list[list[int]]:
    return [run(decoder_of(NoDrafter(), verifier), [p], params)[0].generated for p in prompts]


@pytest.mark.parametrize("temperature", [0.0, 0.7, 1.3])
def test_the_target_itself_is_always_accepted(temperature: float) -> None:
    """Coupled drafting uses the target's own noise, penalties included."""
    drafter = DraftModel(TabularTarget(BIG.logits, VOCABULARY), VOCABULARY, report_law=False)
    params = SamplingParams(
        temperature, top_p=0.9, repetition_penalty=1.2, max_new_tokens=50, seed=3
    )
    [sequence] = run(decoder_of(drafter, Coupled()), [[1, 2]], params)
    stats = sequence.stats
    assert stats.accepted_tokens == stats.drafted_tokens == 40
    assert stats.target_forwards == 10  # five tokens each: four drafted and a bonus
    assert [sequence.generated] == plain([[1, 2]], params, Coupled())


@pytest.mark.parametrize("verifier", [Greedy(), Coupled(), SampleMatch()], ids=lambda v: v.name)
def test_a_greedy_request_accepts_the_target_itself_under_every_rule(verifier: Verifier) -> None:
    drafter = DraftModel(TabularTarget(BIG.logits, VOCABULARY), VOCABULARY, report_law=False)
    [sequence] = run(decoder_of(drafter, verifier), [[0]], SamplingParams(max_new_tokens=20))
    assert sequence.stats.accepted_tokens == sequence.stats.drafted_tokens == 16


def test_rejection_accepts_the_target_itself() -> None:
    drafter = DraftModel(TabularTarget(BIG.logits, VOCABULARY), VOCABULARY, report_law=True)
    [sequence] = run(decoder_of(drafter, Rejection()), [[0]], SAMPLED)
    assert sequence.stats.accepted_tokens == sequence.stats.drafted_tokens > 0


def draft_of(params: SamplingParams, report_law: bool, depth: int = 3) -> TokenTree:
    drafter = DraftModel(TabularTarget(SMALL.logits, VOCABULARY), VOCABULARY, report_law=report_law)
    sequence = Sequence.start(0, [3, 1], params)
    drafter.open(sequence)
    [draft] = drafter.propose([sequence], [Budget(depth, depth)])
    return draft


def test_reported_rows_are_the_processed_laws_along_the_chain() -> None:
    params = SamplingParams(temperature=0.8, top_k=3, repetition_penalty=1.3, seed=6)
    draft = draft_of(params, report_law=True)
    assert draft.law is not None
    assert draft.law.kind == "iid"
    assert set(draft.law.rows) == {ROOT, 0, 1}
    law = processed(SMALL.logits, params, [3, 1])
    for parent, row in draft.law.rows.items():
        context = (3, 1, *draft.tokens[: parent + 1].tolist())
        np.testing.assert_array_equal(row.dense(), law(context).dense())
        assert row.prob(int(draft.tokens[parent + 1])) > 0


def test_every_sequence_of_a_batch_reports_its_own_rows() -> None:
    drafter = DraftModel(TabularTarget(SMALL.logits, VOCABULARY), VOCABULARY, report_law=True)
    prompts = [[3, 1], [2], [1, 1, 5]]
    sequences = [Sequence.start(i, prompt, SAMPLED) for i, prompt in enumerate(prompts)]
    for sequence in sequences:
        drafter.open(sequence)
    drafts = drafter.propose(sequences, [Budget(2, 2), Budget(1, 1), Budget(3, 3)])
    for prompt, draft in zip(prompts, drafts, strict=True):
        assert draft.law is not None
        assert set(draft.law.rows) == set(range(-1, len(draft) - 1))
        for parent, row in draft.law.rows.items():
            context = (*prompt, *draft.tokens[: parent + 1].tolist())
            np.testing.assert_allclose(row.dense(), SMALL.law(context).dense(), rtol=1e-12)


def test_greedy_rows_are_one_hot() -> None:
    draft = draft_of(SamplingParams(), report_law=True)
    assert draft.law is not None
    for parent, row in draft.law.rows.items():
        assert row.dense().tolist() == np.eye(VOCABULARY)[draft.tokens[parent + 1]].tolist()


def test_a_chain_with_shared_noise_claims_no_law() -> None:
    draft = draft_of(SAMPLED, report_law=False)
    assert draft.law is None
    assert draft.source == "draft-model"


TINY = TabularModel(3, 1, seed=11), TabularModel(3, 1, seed=12)


def generate_tiny(verifier: Verifier, params: SamplingParams, randomness: Randomness) -> list[int]:
    """The shipped loop and drafter on tables of three tokens."""
    big, small = (TabularTarget(model.logits, 3) for model in TINY)
    drafter = DraftModel(small, 3, report_law=None not in verifier.accepts)
    decoder = decoder_of(drafter, verifier, depth=2, target=big)
    sequence = Sequence.start(0, [1], params)
    sequence.randomness = randomness
    decoder.open(sequence)
    while sequence.finish_reason is None:
        decoder.step([sequence])
    decoder.close(sequence)
    return sequence.generated


@pytest.mark.parametrize("temperature", [1.0, 0.6])
def test_with_rejection_the_output_law_is_the_target_s(temperature: float) -> None:
    """By enumeration of all draws over several rounds."""
    params = SamplingParams(temperature=temperature, max_new_tokens=3, presence_penalty=0.5)
    found = enumerate_law(lambda r: tuple(generate_tiny(Rejection(), params, r)))
    wanted = target_joint(processed(TINY[0].logits, params, [1]), (1,), 3)
    assert max_error(found, wanted) < 1e-12


@pytest.mark.parametrize("verifier", [Coupled(), SampleMatch()], ids=lambda v: v.name)
def test_with_noise_the_output_law_is_the_target_s(verifier: Verifier) -> None:
    counts: Counter[tuple[int, ...]] = Counter()
    for seed in range(600):
        params = SamplingParams(temperature=1.0, max_new_tokens=2, seed=seed)
        randomness = Sequence.start(0, [1], params).randomness
        counts[tuple(generate_tiny(verifier, params, randomness))] += 1
    law = processed(TINY[0].logits, SamplingParams(temperature=1.0), [1])
    assert goodness_of_fit(counts, target_joint(law, (1,), 2)) > 1e-4


@settings(max_examples=30, deadline=None)
@given(
    st.lists(
        st.lists(st.integers(0, VOCABULARY - 1), min_size=1, max_size=9), min_size=1, max_size=4
    ),
    st.integers(1, 6),
    st.sampled_from([Coupled(), Rejection()]),
    st.integers(0, 99),
)
def test_the_cache_always_holds_what_was_committed_and_drafted(
    prompts: list[list[int]], depth: int, verifier: Verifier, seed: int
) -> None:
    """Rollback after zero, partial and full acceptance, in ragged batches."""
    small = Watched(SMALL)

    class Checked(DraftModel):
        def _advance(self, sequences: List[Sequence], drafts: List[list[int]]) -> list[Law]:
            laws = super()._advance(sequences, drafts)
            for sequence, draft in zip(sequences, drafts, strict=True):
                assert small.caches[sequence.id].tokens == [*sequence.tokens, *draft]
            return laws

    drafter = Checked(small, VOCABULARY, report_law=verifier.name == "rejection")
    params = SamplingParams(temperature=1.0, max_new_tokens=20, seed=seed)
    sequences = run(decoder_of(drafter, verifier, depth), prompts, params)
    assert all(cache.released for cache in small.caches)
    if verifier.name == "coupled":
        assert [s.generated for s in sequences] == plain(prompts, params, verifier)
    lags = {len(p.pending) for batch in small.batches for p in batch}
    assert lags <= {1, 2}  # two after a full acceptance: the bonus and the last drafted token


def test_the_draft_model_lags_after_full_acceptance() -> None:
    small = Watched(BIG)
    drafter = DraftModel(small, VOCABULARY, report_law=False)
    run(decoder_of(drafter, Greedy(), depth=2), [[0]], SamplingParams(max_new_tokens=9))
    first = [len(batch[0].pending) for batch in small.batches]
    assert first == [1, 1, 2, 1, 2, 1]


def test_one_forward_per_level_for_the_whole_batch() -> None:
    small = Watched(SMALL)
    drafter = DraftModel(small, VOCABULARY, report_law=False)
    sequences = [Sequence.start(i, [i, 1], SAMPLED) for i in range(3)]
    for sequence in sequences:
        drafter.open(sequence)
    drafts = drafter.propose(sequences, [Budget(3, 3), Budget(0, 0), Budget(5, 1)])
    assert [len(draft) for draft in drafts] == [3, 0, 1]
    assert [len(batch) for batch in small.batches] == [2, 1, 1]


def test_a_different_vocabulary_is_refused() -> None:
    with pytest.raises(InvalidOption, match="6 tokens and the target 7"):
        DraftModel(TabularTarget(SMALL.logits, VOCABULARY), 7, report_law=False)
    target = TabularTarget(BIG.logits, VOCABULARY)
    small = TabularTarget(TINY[0].logits, 3)
    with pytest.raises(InvalidOption, match="3 tokens and the target 6"):
        DraftModel.create(DrafterContext(target.capabilities, lambda: small))


@pytest.mark.parametrize("context", [4, 10, 25])
@pytest.mark.parametrize("prompt", [[0], [0, 1, 2], [0, 1, 2, 3], [1] * 5, [2] * 12])
def test_a_shorter_context_limits_the_depth(context: int, prompt: list[int]) -> None:
    """Also where the prompt alone is longer than the draft model's context."""
    small = Watched(SMALL, max_context=context)
    drafter = DraftModel(small, VOCABULARY, report_law=False)
    [sequence] = run(decoder_of(drafter, Coupled()), [prompt], SAMPLED)
    assert [sequence.generated] == plain([prompt], SAMPLED, Coupled())
    reach = [p.cache.length for batch in small.batches for p in batch]
    assert all(length <= context for length in reach)


def test_a_failed_step_can_be_repeated() -> None:
    """The target fails between propose and observe; the draft model must not run ahead."""

    class Failing(TabularTarget):
        failures = 0

        def forward(self, passes: List[Pass], rows: int = 0) -> list[Output]:
            self.failures += 1
            if self.failures % 2:
                raise OutOfMemory("no room: try again")
            return super().forward(passes, rows)

    for verifier in (Coupled(), Rejection()):
        small = TabularTarget(SMALL.logits, VOCABULARY)
        drafter = DraftModel(small, VOCABULARY, report_law=verifier.name == "rejection")
        target = Failing(BIG.logits, VOCABULARY)
        decoder = decoder_of(drafter, verifier, target=target)
        sequence = Sequence.start(0, [1, 2], SAMPLED)
        decoder.open(sequence)
        while sequence.finish_reason is None:
            with pytest.raises(OutOfMemory):
                decoder.step([sequence])
            decoder.step([sequence])
        if verifier.name == "coupled":
            assert [sequence.generated] == plain([[1, 2]], SAMPLED, verifier)


def test_a_draft_model_without_memory_leaves_no_cache_behind() -> None:
    class Full(Watched):
        def prefill(self, cache: TabularCache, tokens: List[int]) -> None:
            raise OutOfMemory("no room: use shorter prompts")

    big, small = Watched(BIG), Full(SMALL)
    decoder = decoder_of(DraftModel(small, VOCABULARY, report_law=False), Coupled(), target=big)
    sequence = Sequence.start(0, [1, 2, 3], SAMPLED)
    with pytest.raises(OutOfMemory):
        decoder.open(sequence)
    assert sequence.cache is None
    assert all(cache.released for cache in (*big.caches, *small.caches))


def test_close_releases_once_and_may_be_repeated() -> None:
    small = Watched(SMALL)
    drafter = DraftModel(small, VOCABULARY, report_law=False)
    sequence = Sequence.start(0, [1, 2], SAMPLED)
    drafter.open(sequence)
    drafter.close(sequence)
    drafter.close(sequence)
    assert small.caches[0].released
