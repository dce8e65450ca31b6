"""Cascades: exact at every level, caches that hold what they should, and rounds as counted."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any, ClassVar

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.helpers.decoding_loop import decode
from tests.helpers.drafter_context import context as drafter_context
from tests.proof.joints import joint_of_steps

from paceline.core import tree as trees
from paceline.core.target import Output, Rows, Target
from paceline.core.types import Budget, Needs, SamplingParams, TokenTree
from paceline.drafters.base import Drafter, NoDrafter
from paceline.drafters.recycling import Recycling
from paceline.engine.loop import AutoregressiveDecoder
from paceline.engine.stopping import StopRules
from paceline.errors import InvalidOption, OutOfMemory, RuntimeUnavailable
from paceline.methods import cascade as cascades
from paceline.methods.cascade import Cascade, Level
from paceline.methods.prompt_lookup import PromptLookup
from paceline.policy.controller import Fixed
from paceline.proof.compare import extend, max_error, target_joint
from paceline.proof.oracle import enumerate_distribution
from paceline.proof.tabular import TabularCache, TabularModel, TabularTarget, processed
from paceline.sampling.generation import Generation, VerifiedDraft
from paceline.sampling.randomness import Randomness
from paceline.verifiers.base import Verifier
from paceline.verifiers.block import Block
from paceline.verifiers.matching import Coupled, Greedy
from paceline.verifiers.rejection import Rejection

EXACT = 1e-12
TABLES = tuple(TabularModel(2, 4, seed, 1.5) for seed in (11, 12, 13))
"""Bottom, middle and target over two tokens."""

VOCABULARY = 6
BIG, MIDDLE, SMALL = (TabularModel(VOCABULARY, 2, seed=s, sharpness=1.5) for s in (1, 2, 3))
SAMPLED = SamplingParams(temperature=1.0, max_new_tokens=24, seed=4)


def table(model: TabularModel) -> TabularTarget:
    return TabularTarget(model.logits, model.vocabulary)


@pytest.mark.parametrize("inner", [Rejection(), Block()], ids=lambda rule: f"inner-{rule.name}")
@pytest.mark.parametrize("rule", [Rejection(), Block()], ids=lambda rule: rule.name)
@pytest.mark.parametrize("least", [(1, 1), (1, 2), (2, 1)])
def test_three_levels_are_exact(least: tuple[int, int], rule: Verifier, inner: Verifier) -> None:
    """Every level by either rule; two steps where that is quick, so that all caches roll back."""
    params = SamplingParams(temperature=1, max_new_tokens=5)

    def drafter() -> Cascade:
        levels = [Level(table(m), t, 8) for m, t in zip(TABLES, least, strict=False)]
        return Cascade(levels, 2, needs_q=True, rule=inner)

    logits, steps = TABLES[-1].logits, 2 if least == (1, 1) else 1
    joint = joint_of_steps(logits, 2, rule, drafter, (0,), params, Budget(8, 8), steps)
    assert max_error(joint, target_joint(TABLES[-1].distribution, (0,), 5)) < EXACT


@pytest.mark.parametrize(
    "params",
    [
        SamplingParams(temperature=0.7),
        SamplingParams(temperature=1.3, top_p=0.75),
        SamplingParams(temperature=0.9, repetition_penalty=1.4, presence_penalty=0.5),
        SamplingParams(temperature=0),
    ],
    ids=["warm", "top-p", "penalties", "greedy"],
)
def test_the_loop_is_exact_over_prompt_lookup(params: SamplingParams) -> None:
    """Two models, the lower fed with copies of the text, and processed logits on both."""
    prompt = (0, 1, 0)
    target, middle = TabularModel(3, 3, 21, 1.5), TabularModel(3, 3, 22, 1.5)
    params = replace(params, max_new_tokens=3)

    def drafter() -> Cascade:
        return Cascade([Level(table(middle))], 3, needs_q=True, bottom=PromptLookup())

    joint = joint_of_steps(target.logits, 3, Rejection(), drafter, prompt, params, Budget(2, 2))
    truth = target_joint(processed(target.logits, params, prompt), prompt, 3)
    assert max_error(joint, truth) < EXACT


@pytest.mark.parametrize("least", [(1, 1), (1, 2), (2, 2), (None, None)])
def test_the_draft_is_a_chain_from_the_law_of_the_level_above_the_others(
    least: tuple[int | None, int | None],
) -> None:
    """Brought to one length with that law, drafts of whatever length have it exactly."""
    distribution = TABLES[1].distribution

    def run(randomness: Randomness) -> tuple[int, ...]:
        levels = [Level(table(m), t, 2) for m, t in zip(TABLES, least, strict=False)]
        cascade = Cascade(levels, 2, needs_q=True)
        sequence = Generation.start(0, [0], SamplingParams(temperature=1))
        sequence.randomness = randomness
        cascade.open(sequence)
        [draft] = cascade.propose([sequence], [Budget(3, 3)])
        assert draft.sampling is not None
        assert draft.sampling.kind == "iid"
        assert min(least[1] or 3, 3) <= len(draft) <= 3
        for parent, row in draft.sampling.rows.items():
            context = (0, *draft.tokens[: parent + 1].tolist())
            np.testing.assert_allclose(row.dense(), distribution(context).dense(), rtol=1e-12)
        assert set(draft.sampling.rows) == set(range(-1, len(draft) - 1))
        return tuple(draft.tokens.tolist())

    joint = extend(enumerate_distribution(run), distribution, (0,), 3)
    assert max_error(joint, target_joint(distribution, (0,), 3)) < EXACT


class Watched(TabularTarget):
    """Remembers its caches and how large its passes were."""

    def __init__(self, model: TabularModel, max_context: int = 4096) -> None:
        super().__init__(model.logits, model.vocabulary, max_context)
        self.caches: list[TabularCache] = []
        self.forwards = 0

    def open(self) -> TabularCache:
        self.caches.append(super().open())
        return self.caches[-1]

    def forward(self, passes: Sequence[Rows]) -> list[Output]:
        self.forwards += 1
        return super().forward(passes)


class Orderly(PromptLookup):
    """Insists that between open and close a sequence only grows, and that steps alternate."""

    name: ClassVar[str] = "orderly"

    def __init__(self) -> None:
        super().__init__()
        self.opened: list[int] = []
        self._text: dict[int, list[int]] = {}
        self._asked: list[int] = []

    def open(self, sequence: Generation) -> None:
        assert sequence.id not in self._text
        self.opened.append(sequence.id)
        self._text[sequence.id] = list(sequence.tokens)
        super().open(sequence)

    def propose(
        self, sequences: Sequence[Generation], budgets: Sequence[Budget]
    ) -> list[TokenTree]:
        self._grow(sequences)
        self._asked = [sequence.id for sequence in sequences]
        return super().propose(sequences, budgets)

    def observe(self, step: Sequence[VerifiedDraft]) -> None:
        sequences = [each.sequence for each in step]
        self._grow(sequences)
        assert self._asked == [sequence.id for sequence in sequences]
        super().observe(step)

    def close(self, sequence: Generation) -> None:
        del self._text[sequence.id]
        super().close(sequence)

    def _grow(self, sequences: Sequence[Generation]) -> None:
        for sequence in sequences:
            before = self._text[sequence.id]
            assert sequence.tokens[: len(before)] == before
            self._text[sequence.id] = list(sequence.tokens)


def decoder_of(
    drafter: Drafter, verifier: Verifier, depth: int = 4, target: Target | None = None
) -> AutoregressiveDecoder:
    target = target or table(BIG)
    stops = StopRules((), target.capabilities.max_context)
    return AutoregressiveDecoder(target, drafter, verifier, Fixed(depth, depth), stops)


def plain(prompts: list[list[int]], params: SamplingParams) -> list[list[int]]:
    return [decode(decoder_of(NoDrafter(), Coupled()), [p], params)[0].generated for p in prompts]


BOTTOMS: dict[str, Callable[[], Drafter]] = {
    "none": NoDrafter,
    "prompt lookup": Orderly,
    "trees": lambda: Recycling(VOCABULARY),
}


@settings(max_examples=25)
@given(
    st.lists(
        st.lists(st.integers(0, VOCABULARY - 1), min_size=1, max_size=7), min_size=1, max_size=3
    ),
    st.tuples(st.sampled_from([None, 1, 3]), st.sampled_from([None, 1, 2])),
    st.integers(1, 6),
    st.sampled_from([Coupled(), Rejection()]),
    st.sampled_from(sorted(BOTTOMS)),
    st.integers(0, 99),
)
def test_caches_hold_the_text_and_nothing_else_in_ragged_batches(
    prompts: list[list[int]],
    least: tuple[int | None, int | None],
    depth: int,
    verifier: Verifier,
    bottom: str,
    seed: int,
) -> None:
    """What is cached and what is fed make up the text, then drafted tokens."""
    texts: dict[int, list[int]] = {}

    class Fed(Watched):
        def forward(self, passes: Sequence[Rows]) -> list[Output]:
            for each in passes:
                text = texts[self.caches.index(each.cache)]
                fed = [*each.cache.tokens, *each.tokens[: each.num_new]]
                assert fed[: len(text)] == text
            return super().forward(passes)

    models = [Fed(SMALL), Fed(MIDDLE)]
    levels = [Level(model, t) for model, t in zip(models, least, strict=True)]
    needs_q = verifier.name == "rejection"
    cascade = Cascade(levels, VOCABULARY, needs_q=needs_q, bottom=BOTTOMS[bottom]())
    decoder = decoder_of(cascade, verifier, depth)
    params = SamplingParams(temperature=1.0, max_new_tokens=15, presence_penalty=0.3, seed=seed)
    sequences = [Generation.start(i, prompt, params) for i, prompt in enumerate(prompts)]
    for sequence in sequences:
        decoder.open(sequence)
    running = sequences
    while running:
        texts.update({s.id: list(s.tokens) for s in running})
        for commit in decoder.step(running):
            if commit.finish_reason:
                decoder.close(commit.sequence)
        running = [s for s in running if s.finish_reason is None]
    assert all(cache.released for model in models for cache in model.caches)
    if verifier.name == "coupled":
        assert [s.generated for s in sequences] == plain(prompts, params)


@pytest.mark.parametrize("temperature", [0.0, 0.8])
def test_copies_of_the_target_are_always_right_and_run_as_often_as_counted(
    temperature: float,
) -> None:
    """Shared noise at all levels: what the cheapest model drafts is what the target says."""
    bottom, middle = Watched(BIG), Watched(BIG)
    levels = [Level(bottom), Level(middle, nodes=3)]
    cascade = Cascade(levels, VOCABULARY, needs_q=False)
    params = SamplingParams(temperature, max_new_tokens=27, seed=3, repetition_penalty=1.2)
    [sequence] = decode(decoder_of(cascade, Coupled(), depth=8), [[1, 2]], params)
    stats = sequence.stats
    assert stats.accepted_tokens == stats.drafted_tokens == 24
    assert stats.target_forwards == 3  # nine tokens each
    assert middle.forwards == 3 * 2  # eight tokens by rounds of 3 + 1
    assert bottom.forwards == 3 * 6  # and these one by one
    assert [sequence.generated] == plain([[1, 2]], params)


@pytest.mark.parametrize("rule", [Rejection(), Block()], ids=lambda rule: rule.name)
def test_copies_of_the_target_are_always_right_by_their_reported_laws(rule: Verifier) -> None:
    levels = [Level(table(BIG)), Level(table(BIG))]
    cascade = Cascade(levels, VOCABULARY, needs_q=True)
    [sequence] = decode(decoder_of(cascade, rule), [[0]], SAMPLED)
    assert sequence.stats.accepted_tokens == sequence.stats.drafted_tokens > 0


def test_a_level_stops_at_its_least() -> None:
    """Three accepted and one of its own would be four; two are enough to hand upwards."""
    middle = Watched(BIG)
    cascade = Cascade(
        [Level(table(BIG), least=1), Level(middle, least=3)], VOCABULARY, needs_q=False
    )
    sequence = Generation.start(0, [1, 2], SAMPLED)
    cascade.open(sequence)
    [draft] = cascade.propose([sequence], [Budget(9, 9)])
    assert len(draft) == 4  # rounds of 1 + 1
    assert middle.forwards == 2


def test_drafts_keep_to_budget_and_context() -> None:
    middle = Watched(MIDDLE, max_context=6)
    cascade = Cascade([Level(middle)], VOCABULARY, needs_q=True)
    prompts = [[0], [1, 2, 3], [1] * 6, [1] * 9, [2, 2]]
    sequences = [Generation.start(i, prompt, SAMPLED) for i, prompt in enumerate(prompts)]
    for sequence in sequences:
        cascade.open(sequence)
    budgets = [Budget(3, 9), Budget(9, 9), Budget(2, 2), Budget(2, 2), Budget(0, 0)]
    drafts = cascade.propose(sequences, budgets)
    assert [len(draft) for draft in drafts] == [3, 3, 0, 0, 0]
    assert all(trees.is_chain(draft) for draft in drafts)
    assert drafts[2] is trees.EMPTY
    assert all(cache.length <= 6 for cache in middle.caches)


def test_the_bottom_sees_text_that_only_grows() -> None:
    """It is opened anew where drafted text was taken back, and only there."""
    right, wrong = Orderly(), Orderly()
    for bottom, model in ((right, BIG), (wrong, SMALL)):
        cascade = Cascade([Level(table(model))], VOCABULARY, needs_q=False, bottom=bottom)
        decode(decoder_of(cascade, Coupled()), [[0, 1, 0]], SAMPLED)
    assert len(right.opened) == 1
    assert len(wrong.opened) > 1


def test_a_failed_step_can_be_repeated() -> None:
    """The target or the middle model fails between rounds."""

    class Failing(TabularTarget):
        calls = 0

        def forward(self, passes: Sequence[Rows]) -> list[Output]:
            self.calls += 1
            if self.calls in (1, 3, 4, 8, 11):
                raise OutOfMemory("no room: try again")
            return super().forward(passes)

    for failing in ("target", "middle"):
        kinds = {"target": TabularTarget, "middle": TabularTarget} | {failing: Failing}
        target = kinds["target"](BIG.logits, VOCABULARY)
        middle = kinds["middle"](MIDDLE.logits, VOCABULARY)
        levels = [Level(table(SMALL)), Level(middle)]
        cascade = Cascade(levels, VOCABULARY, needs_q=False, bottom=Orderly())
        decoder = decoder_of(cascade, Coupled(), target=target)
        sequence = Generation.start(0, [1, 2], SAMPLED)
        decoder.open(sequence)
        failures = 0
        while sequence.finish_reason is None:
            try:
                decoder.step([sequence])
            except OutOfMemory:
                failures += 1
        assert failures == 5
        assert [sequence.generated] == plain([[1, 2]], SAMPLED)


def test_a_level_without_memory_leaves_no_cache_behind() -> None:
    class Full(Watched):
        def prefill(
            self, cache: TabularCache, tokens: Sequence[int], features: bool = False
        ) -> None:
            raise OutOfMemory("no room: use shorter prompts")

    for models in ([Watched(SMALL), Full(MIDDLE)], [Full(SMALL), Watched(MIDDLE)]):
        big = Watched(BIG)
        cascade = Cascade(list(map(Level, models)), VOCABULARY, needs_q=False)
        with pytest.raises(OutOfMemory):
            decoder_of(cascade, Coupled(), target=big).open(Generation.start(0, [1, 2], SAMPLED))
        assert all(cache.released for model in (big, *models) for cache in model.caches)


def test_greedy_requests_give_the_greedy_text_under_every_rule() -> None:
    params = SamplingParams(max_new_tokens=20)
    expected = plain([[0, 3]], params)
    for rule in (Greedy(), Coupled(), Rejection(), Block()):
        cascade = Cascade(
            [Level(table(SMALL)), Level(table(MIDDLE))],
            VOCABULARY,
            needs_q=None not in rule.accepts,
            bottom=PromptLookup(),
        )
        assert [decode(decoder_of(cascade, rule), [[0, 3]], params)[0].generated] == expected


def test_wrong_stacks_are_refused() -> None:
    with pytest.raises(InvalidOption, match="needs a model"):
        Cascade([], VOCABULARY, needs_q=True)
    with pytest.raises(InvalidOption, match="2 tokens and the target 6"):
        Cascade([Level(table(BIG)), Level(table(TABLES[0]))], VOCABULARY, needs_q=True)
    for level in (Level(table(BIG), least=0), Level(table(BIG), nodes=0)):
        with pytest.raises(InvalidOption, match="1 or more"):
            Cascade([level], VOCABULARY, needs_q=True)


@pytest.mark.parametrize("needs_q", [False, True])
def test_create_puts_prompt_lookup_under_the_draft_model(needs_q: bool) -> None:
    middle = Watched(MIDDLE)
    accepts = frozenset({"iid" if needs_q else None})
    context = drafter_context(table(BIG), lambda: middle, accepts=accepts)
    cascade = Cascade.create(context)
    sequence = Generation.start(0, [1, 2, 3, 1, 2, 3, 1], SAMPLED)
    cascade.open(sequence)
    [draft] = cascade.propose([sequence], [Budget(5, 5)])
    assert len(draft) == 5
    assert (draft.sampling is not None) == needs_q
    assert draft.source == "cascade"
    cascade.reset()
    cascade.close(sequence)
    cascade.close(sequence)
    assert middle.caches[0].released


def test_options_of_the_command_line() -> None:
    middle, coarse = Watched(MIDDLE), Watched(SMALL)

    def built(coarser: Target | None = coarse, **options: str) -> Cascade:
        accepts = frozenset({"iid"})
        return Cascade.create(
            drafter_context(
                table(BIG), lambda: middle, accepts=accepts, coarse=coarser, options=options
            )
        )

    params = replace(SAMPLED, max_new_tokens=10)
    cascade = built(bottom="suffix-automaton", int8="true", least="2", nodes="3")
    [done] = decode(decoder_of(cascade, Block()), [[0, 3]], params)
    assert len(done.generated) == 10
    assert middle.caches
    assert coarse.caches
    with pytest.raises(InvalidOption, match="a cascade of one level"):
        built(middle="false")
    assert built(middle="false", int8="true").kind == "iid"
    with pytest.raises(RuntimeUnavailable, match="fp32"):
        built(None, int8="true")
    with pytest.raises(InvalidOption, match="1 or more"):
        built(nodes="0")
    with pytest.raises(InvalidOption, match="unknown"):
        built(bottom="nothing")
    with pytest.raises(RuntimeUnavailable, match="runs none"):
        built(bottom="eagle3")


class FeatureTable(TabularTarget):
    """Features of a token: the token, and the number of tokens before it."""

    def __init__(self, model: TabularModel) -> None:
        super().__init__(model.logits, model.vocabulary)
        self._capabilities = replace(self._capabilities, hidden_size=1, feature_layers=(0, 1, 2))

    def prefill(self, cache: TabularCache, tokens: Sequence[int], features: bool = False) -> Any:
        begin = cache.length
        super().prefill(cache, tokens)
        return features_of(tokens, range(begin, cache.length)) if features else None

    def forward(self, passes: Sequence[Rows]) -> list[Output]:
        out = []
        for each, output in zip(passes, super().forward(passes), strict=True):
            draft = trees.EMPTY if each.tree is None else each.tree
            begin = each.cache.length + each.num_new
            places = [*range(each.cache.length, begin), *(begin - 1 + trees.depths(draft))]
            rows = features_of(each.tokens, places)
            out.append(output._replace(features=rows) if each.features else output)
        return out


def features_of(tokens: Sequence[int], places: Sequence[int]) -> np.ndarray:
    rows = np.zeros((len(tokens), 4), np.float32)
    rows[:, 0], rows[:, 1] = tokens, places
    return rows


class Reading(Drafter):
    """Insists on the features of the text so far, and drafts trees that depend on them."""

    name: ClassVar[str] = "reading"
    needs = Needs(features=True)

    def __init__(self, vocabulary: int) -> None:
        self._vocabulary = vocabulary
        self._rows: dict[int, list[list[float]]] = {}
        self.opened = 0

    def open(self, sequence: Generation) -> None:
        self.opened += 1
        self._rows[sequence.id] = []

    def read(self, sequence: Generation, features: np.ndarray) -> None:
        self._rows[sequence.id] = features[:, :2].tolist()

    def propose(
        self, sequences: Sequence[Generation], budgets: Sequence[Budget]
    ) -> list[TokenTree]:
        out = []
        for sequence, budget in zip(sequences, budgets, strict=True):
            before = sequence.tokens[:-1]
            assert self._rows[sequence.id] == [[t, at] for at, t in enumerate(before)]
            assert sequence.cache.length == len(before)
            guess = (sum(before) + sequence.tokens[-1]) % self._vocabulary
            other = (guess + 1) % self._vocabulary
            tree = TokenTree(np.array([guess, other, guess]), np.array([-1, -1, 0]))
            out.append(trees.limit(tree, budget.nodes, budget.depth))
        return out

    def observe(self, step: Sequence[VerifiedDraft]) -> None:
        for sequence, _, verdict, output in step:
            assert output.features is not None
            rows = output.features[[0, *(node + 1 for node in verdict.path)], :2]
            self._rows[sequence.id] += rows.tolist()

    def close(self, sequence: Generation) -> None:
        del self._rows[sequence.id]


@pytest.mark.parametrize("least", [1, 2])
@pytest.mark.parametrize("rule", [Rejection(), Block()], ids=lambda rule: rule.name)
def test_a_tree_from_features_below_two_models_is_exact(least: int, rule: Verifier) -> None:
    """SpecMQuant's stack: features of the model in the middle, trees for it, chains for the top."""
    params = SamplingParams(temperature=1, max_new_tokens=4)
    made: list[Reading] = []

    def drafter() -> Cascade:
        made.append(Reading(2))
        level = Level(FeatureTable(TABLES[1]), least, 3)
        return Cascade([level], 2, needs_q=True, bottom=made[-1])

    joint = joint_of_steps(TABLES[2].logits, 2, rule, drafter, (0, 1, 1), params, Budget(3, 3), 2)
    assert max_error(joint, target_joint(TABLES[2].distribution, (0, 1, 1), 4)) < EXACT
    assert any(each.opened > 1 for each in made)  # text was taken back


def test_a_batch_over_features_has_the_plain_texts() -> None:
    levels = [Level(FeatureTable(MIDDLE), 2, 3)]
    cascade = Cascade(levels, VOCABULARY, needs_q=False, bottom=Reading(VOCABULARY))
    prompts = [[0, 3], [1, 2, 5, 5], [4]]
    done = decode(decoder_of(cascade, Coupled()), prompts, SAMPLED)
    assert [each.generated for each in done] == plain(prompts, SAMPLED)


def test_features_that_were_not_read_are_missed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cascades._Model, "_note", lambda *_: None)
    cascade = Cascade([Level(FeatureTable(MIDDLE))], 6, needs_q=False, bottom=Reading(6))
    with pytest.raises(AssertionError):
        decode(decoder_of(cascade, Coupled()), [[0, 3]], SAMPLED)


def test_a_bottom_that_draws_is_refused() -> None:
    drawing = Reading(6)
    drawing.kind = "iid"
    with pytest.raises(InvalidOption, match="draws its drafts"):
        Cascade([Level(table(MIDDLE))], VOCABULARY, needs_q=True, bottom=drawing)
