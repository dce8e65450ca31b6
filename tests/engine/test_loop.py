"""The decode loop on a tabular model: drafts change how fast tokens come, never which."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from paceline.core.target import Output, Rows
from paceline.core.types import Budget, SamplingParams, TokenLogprob, TokenTree
from paceline.drafters.base import Drafter, NoDrafter
from paceline.engine.loop import AutoregressiveDecoder
from paceline.engine.stopping import StopRules, ends_in_loop
from paceline.errors import IncompatibleDraft, OutOfMemory
from paceline.policy.controller import Fixed
from paceline.proof.cases import FunctionDrafter, likely_chain, random_tree, sampled_chain
from paceline.proof.tabular import TabularCache, TabularModel, TabularTarget
from paceline.sampling.generation import Generation
from paceline.sampling.randomness import Randomness
from paceline.verifiers.base import Verifier
from paceline.verifiers.matching import Coupled, Greedy, SampleMatch
from paceline.verifiers.rejection import Rejection

VOCABULARY = 6
MODEL = TabularModel(VOCABULARY, 2, seed=81, sharpness=1.5)
OTHER = TabularModel(VOCABULARY, 2, seed=82, sharpness=1.5)


@dataclass
class Pair:
    """A text watch that stops at two tokens in a row, as a stop string across tokens would."""

    stop: tuple[int, int]
    last: int = -1
    fed: list[int] = field(default_factory=list)

    def feed(self, token: int) -> bool:
        found = (self.last, token) == self.stop
        self.last = token
        self.fed.append(token)
        return found


@dataclass(frozen=True)
class Result:
    """What a user sees of a generation."""

    tokens: tuple[int, ...]
    finish_reason: str | None
    logprobs: tuple[TokenLogprob, ...]
    fed: tuple[int, ...]


@dataclass(frozen=True)
class Case:
    """A batch and what may end it."""

    prompts: list[list[int]]
    params: list[SamplingParams]
    max_context: int = 400
    eos: tuple[int, ...] = ()
    pair: tuple[int, int] = (-2, -2)

    def __iter__(self) -> Iterator[Case]:
        """Each sequence as a batch of its own."""
        for prompt, params in zip(self.prompts, self.params, strict=True):
            yield replace(self, prompts=[prompt], params=[params])


def generate(
    case: Case, drafter: Drafter, verifier: Verifier, nodes: int = 8, depth: int = 4
) -> list[Result]:
    """Run one batch to its end, checking the loop's invariants after every step."""
    target = TabularTarget(MODEL.logits, VOCABULARY, case.max_context)
    stops = StopRules(case.eos, case.max_context)
    decoder = AutoregressiveDecoder(target, drafter, verifier, Fixed(nodes, depth), stops)
    batch = zip(case.prompts, case.params, strict=True)
    sequences = [
        Generation.start(i, prompt, params, ends=tuple(stops.ends(params)))
        for i, (prompt, params) in enumerate(batch)
    ]
    watches = [Pair(case.pair) for _ in sequences]
    for sequence, watch in zip(sequences, watches, strict=True):
        decoder.open(sequence, watch)
        assert sequence.cache.length == len(sequence.tokens) - 1
    running = sequences
    while running:
        before = [len(sequence.tokens) for sequence in running]
        for start, commit in zip(before, decoder.step(running), strict=True):
            sequence = commit.sequence
            assert commit.tokens == tuple(sequence.tokens[start:])
            assert commit.sources == tuple(sequence.sources[-len(commit.tokens) :])
            assert commit.finish_reason == sequence.finish_reason
            if sequence.finish_reason is None:
                assert sequence.cache.tokens == sequence.tokens[:-1]
            else:
                decoder.close(sequence)
                assert sequence.cache is None
        running = [sequence for sequence in running if sequence.finish_reason is None]
    for sequence in sequences:
        stats = sequence.stats
        assert stats.committed_tokens == len(sequence.generated) == len(sequence.sources)
        assert stats.accepted_tokens == sum(source is not None for source in sequence.sources)
        assert stats.accepted_tokens <= stats.drafted_tokens
    return [
        Result(tuple(s.generated), s.finish_reason, tuple(s.logprobs), tuple(w.fed))
        for s, w in zip(sequences, watches, strict=True)
    ]


def drafters() -> dict[str, Drafter]:
    return {
        "tree": FunctionDrafter(random_tree(VOCABULARY, 20, seed=1)),
        "likely": FunctionDrafter(likely_chain(OTHER.distribution)),
        "oracle": FunctionDrafter(likely_chain(MODEL.distribution)),
        "sampled": FunctionDrafter(sampled_chain(OTHER.distribution)),
    }


tokens = st.integers(0, VOCABULARY - 1)
prompts = st.lists(st.lists(tokens, min_size=1, max_size=6), min_size=1, max_size=4)


@st.composite
def sampling(draw: st.DrawFn, greedy: bool) -> SamplingParams:
    """Any combination of processors and stop conditions that leaves some token possible."""
    most = draw(st.integers(1, 24))
    banned = tuple(draw(st.sets(tokens, max_size=2)))
    # Less one banned token, one end token and one stop token, another is left.
    allowed = draw(st.sets(tokens, min_size=4)) | set(range(VOCABULARY)) - {*banned, 5}
    return SamplingParams(
        temperature=0.0 if greedy else draw(st.sampled_from([0.5, 1.0, 1.7])),
        top_k=draw(st.sampled_from([0, 0, 2, 4])),
        top_p=draw(st.sampled_from([1.0, 0.9, 0.5])),
        min_p=draw(st.sampled_from([0.0, 0.2])),
        repetition_penalty=draw(st.sampled_from([1.0, 1.3, 0.8])),
        presence_penalty=draw(st.sampled_from([0.0, 0.7])),
        frequency_penalty=draw(st.sampled_from([0.0, 0.4, -0.3])),
        logit_bias=draw(st.dictionaries(tokens, st.floats(-3, 3), max_size=3)),
        banned_tokens=banned,
        allowed_tokens=draw(st.sampled_from([(), tuple(allowed)])),
        min_tokens=draw(st.sampled_from([0, 0, 1, most])),
        forced_tokens=draw(st.dictionaries(st.integers(0, 9), tokens, max_size=3)),
        seed=draw(st.integers(0, 2**64 - 1)),
        max_new_tokens=most,
        stop_token_ids=tuple(draw(st.sets(tokens, max_size=1))),
        ignore_eos=draw(st.booleans()),
        stop_loops=draw(st.booleans()),
        logprobs=draw(st.sampled_from([None, 0, 2, VOCABULARY])),
    )


@st.composite
def cases(draw: st.DrawFn, greedy: bool) -> Case:
    batch = draw(prompts)
    return Case(
        batch,
        [draw(sampling(greedy)) for _ in batch],
        max_context=draw(st.sampled_from([8, 12, 400])),
        eos=draw(st.sampled_from([(), (5,)])),
        pair=(draw(tokens), draw(tokens)),
    )


@pytest.mark.parametrize("name", drafters())
@pytest.mark.parametrize("verifier", [Coupled(), SampleMatch()], ids=lambda v: v.name)
@settings(max_examples=50)
@given(case=cases(greedy=False), nodes=st.integers(1, 12), depth=st.integers(1, 6))
def test_seeded_text_is_the_same_with_speculation(
    verifier: Verifier, name: str, case: Case, nodes: int, depth: int
) -> None:
    """Tokens, log-probabilities, end and reason, alone and in ragged batches."""
    drafted = generate(case, drafters()[name], verifier, nodes, depth)
    assert drafted == [generate(one, NoDrafter(), verifier)[0] for one in case]


@pytest.mark.parametrize("name", drafters())
@pytest.mark.parametrize("verifier", [Greedy(), Coupled(), SampleMatch()], ids=lambda v: v.name)
@settings(max_examples=30)
@given(case=cases(greedy=True), nodes=st.integers(1, 12), depth=st.integers(1, 6))
def test_greedy_text_is_the_same_with_speculation(
    verifier: Verifier, name: str, case: Case, nodes: int, depth: int
) -> None:
    drafted = generate(case, drafters()[name], verifier, nodes, depth)
    assert drafted == [generate(one, NoDrafter(), Greedy())[0] for one in case]


@settings(max_examples=50)
@given(case=cases(greedy=False))
def test_results_have_the_promised_shape(case: Case) -> None:
    drafted = generate(case, drafters()["tree"], Coupled())
    for prompt, params, result in zip(case.prompts, case.params, drafted, strict=True):
        room = min(params.max_new_tokens, max(1, case.max_context - len(prompt)))
        assert 1 <= len(result.tokens) <= room
        ends = set(params.stop_token_ids) | (set() if params.ignore_eos else set(case.eos))
        assert not ends & set(result.tokens[:-1])
        if result.finish_reason == "length":
            assert len(result.tokens) == room
        elif result.finish_reason == "loop":
            assert ends_in_loop(result.tokens)
        elif result.tokens[-1] not in ends:
            assert result.tokens[-2:] == case.pair
        for index, token in params.forced_tokens.items():
            assert len(result.tokens) <= index or result.tokens[index] == token
        free = [t for i, t in enumerate(result.tokens) if i not in params.forced_tokens]
        assert not set(free) & set(params.banned_tokens)
        assert set(free) <= set(params.allowed_tokens or free)
        early = enumerate(result.tokens[: params.min_tokens])
        assert not ends & {t for i, t in early if i not in params.forced_tokens}
        asked = params.logprobs is not None
        assert len(result.logprobs) == (len(result.tokens) if asked else 0)


@pytest.mark.parametrize("name", drafters())
def test_a_loop_ends_where_plain_decoding_would_have_ended(name: str) -> None:
    params = [SamplingParams(max_new_tokens=90, stop_loops=loops) for loops in (True, False)]
    case = Case([[0, 1], [0, 1]], params)
    drafted = generate(case, drafters()[name], Greedy(), nodes=7, depth=7)
    ended, endless = [generate(one, NoDrafter(), Greedy())[0] for one in case]
    assert drafted == [ended, endless]
    assert (ended.finish_reason, endless.finish_reason) == ("loop", "length")
    assert ended.tokens == endless.tokens[: len(ended.tokens)]
    assert ends_in_loop(ended.tokens)
    assert not ends_in_loop(ended.tokens[:-1])


def test_logprobs_are_of_the_raw_rows_on_the_accepted_path() -> None:
    params = SamplingParams(temperature=1, top_p=0.5, seed=3, max_new_tokens=30, logprobs=2)
    [result] = generate(Case([[0, 1]], [params]), drafters()["oracle"], Coupled())
    context = [0, 1]
    for token, entry in zip(result.tokens, result.logprobs, strict=True):
        distribution = MODEL.distribution(tuple(context)).probs
        assert entry.token_id == token
        assert entry.logprob == pytest.approx(math.log(distribution[token]))
        assert [t for t, _ in entry.top] == sorted(
            range(VOCABULARY), key=lambda t: -distribution[t]
        )[:2]
        context.append(token)


def test_drafts_are_accepted_and_never_deeper_than_the_room() -> None:
    asked: list[int] = []
    oracle = likely_chain(MODEL.distribution)

    def recorder(context: tuple[int, ...], randomness: Randomness, budget: Budget) -> TokenTree:
        asked.append(budget.depth)
        return oracle(context, randomness, budget)

    case = Case([[0]], [SamplingParams(max_new_tokens=11)])
    [result] = generate(case, FunctionDrafter(recorder), Greedy(), nodes=4)
    assert len(result.tokens) == 11
    assert asked == [4, 4, 0]  # 5 + 5 + 1 tokens: the last needs no draft


def test_sources_name_who_proposed_each_token() -> None:
    target = TabularTarget(MODEL.logits, VOCABULARY)
    drafter = FunctionDrafter(likely_chain(MODEL.distribution))
    decoder = AutoregressiveDecoder(target, drafter, Greedy(), Fixed(3, 3), StopRules((), 100))
    sequence = Generation.start(0, [2], SamplingParams(max_new_tokens=6))
    decoder.open(sequence)
    [commit] = decoder.step([sequence])
    assert commit.sources == ("likely-chain",) * 3 + (None,)
    [commit] = decoder.step([sequence])
    assert commit.sources == ("likely-chain", None)
    assert commit.finish_reason == "length"


@pytest.mark.parametrize(
    ("params", "asked"),
    [
        (SamplingParams(), True),
        (SamplingParams(forced_tokens={0: 1}), False),
        (SamplingParams(temperature=0.5), False),
        (SamplingParams(banned_tokens=(2,)), False),
        (SamplingParams(frequency_penalty=0.5), False),
    ],
)
def test_the_most_probable_tokens_are_asked_for_where_they_are_what_wins(
    params: SamplingParams, asked: bool
) -> None:
    asks = []

    class Watched(TabularTarget):
        def forward(self, passes: Sequence[Rows]) -> list[Output]:
            asks.extend(each.argmax for each in passes)
            return super().forward(passes)

    target = Watched(MODEL.logits, VOCABULARY)
    decoder = AutoregressiveDecoder(target, NoDrafter(), Coupled(), Fixed(1, 1), StopRules((), 99))
    sequence = Generation.start(0, [1, 2], params)
    decoder.open(sequence)
    decoder.step([sequence])
    assert asks == [asked]


def test_a_stop_token_inside_an_accepted_run_ends_it() -> None:
    [whole] = generate(Case([[0]], [SamplingParams(max_new_tokens=12)]), NoDrafter(), Greedy())
    stop = whole.tokens[2]
    params = SamplingParams(max_new_tokens=12, stop_token_ids=(stop,))
    [cut] = generate(Case([[0]], [params]), drafters()["oracle"], Greedy(), depth=8)
    first = whole.tokens.index(stop)
    assert cut.tokens == whole.tokens[: first + 1]
    assert cut.finish_reason == "stop"


def test_rejection_runs_in_ragged_batches() -> None:
    params = [SamplingParams(temperature=1, seed=s, max_new_tokens=20 + s) for s in range(3)]
    case = Case([[0], [1, 2, 3], [4, 4]], params)
    together = generate(case, drafters()["sampled"], Rejection())
    assert together == [generate(one, drafters()["sampled"], Rejection())[0] for one in case]


def test_rejection_refuses_a_deterministic_draft() -> None:
    case = Case([[0]], [SamplingParams(temperature=1)])
    with pytest.raises(IncompatibleDraft, match="deterministic"):
        generate(case, drafters()["tree"], Rejection())


def test_a_prompt_that_does_not_fit_leaves_nothing_behind() -> None:
    released: list[TabularCache] = []

    class Recorder(TabularTarget):
        def release(self, cache: TabularCache) -> None:
            released.append(cache)
            super().release(cache)

    target = Recorder(MODEL.logits, VOCABULARY, max_context=3)
    decoder = AutoregressiveDecoder(target, NoDrafter(), Greedy(), Fixed(1, 1), StopRules((), 3))
    sequence = Generation.start(0, [0] * 9, SamplingParams())
    with pytest.raises(OutOfMemory):
        decoder.open(sequence)
    assert sequence.cache is None
    assert len(released) == 1
