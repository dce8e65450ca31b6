"""From drafts to losses, on a table whose continuations are known."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
from tests.verifiers.lossy_runs import (
    DRAFTERS,
    HIDDEN,
    MODEL,
    VOCABULARY,
    HiddenTarget,
    Truth,
    hidden_state,
    restless,
    run,
    text,
)

from paceline.core.types import SamplingParams
from paceline.errors import InvalidOption
from paceline.methods.heads.training import (
    Beginning,
    GreedyAnswer,
    Mismatch,
    MismatchRecorder,
    RolloutOptions,
    collect,
    greedy,
    losses,
    roll_out,
    sampled,
    train_head,
)
from paceline.methods.heads.verifiers import features
from paceline.proof.tabular import TabularCache
from paceline.registry.loading import make_engine
from paceline.verifiers.matching import Greedy


def go_on(context: tuple[int, ...], length: int) -> tuple[list[int], list[float]]:
    """The table's greedy text after a context, and its log-probabilities."""
    tokens: list[int] = []
    logprobs: list[float] = []
    for _ in range(length):
        distribution = MODEL.distribution((*context, *tokens))
        tokens.append(distribution.argmax())
        logprobs.append(math.log(distribution.prob(tokens[-1])))
    return tokens, logprobs


class Counting(HiddenTarget):
    """Counts caches that are not given back."""

    def __init__(self) -> None:
        super().__init__(MODEL.logits, VOCABULARY)
        self.open_caches = 0

    def open(self) -> TabularCache:
        self.open_caches += 1
        return super().open()

    def fork(self, cache: TabularCache) -> TabularCache:
        self.open_caches += 1
        return super().fork(cache)

    def release(self, cache: TabularCache) -> None:
        self.open_caches -= 1
        super().release(cache)


TOKENS = (0, 1, *go_on((0, 1), 20)[0])


@pytest.fixture
def target() -> Counting:
    return Counting()


@pytest.fixture
def cache(target: Counting) -> Any:
    cache = target.open()
    target.prefill(cache, TOKENS[:-1])
    return cache


@pytest.mark.parametrize("batch", [1, 3, 16])
def test_continuations_are_those_of_the_table(target: Counting, cache: Any, batch: int) -> None:
    beginnings = [Beginning(p, t, greedy) for p in (2, 7, 20) for t in range(VOCABULARY)]
    continued = roll_out(target, cache, beginnings, 5, (), batch)
    for begin, found in zip(beginnings, continued, strict=True):
        tokens, logprobs = go_on((*TOKENS[: begin.position], begin.token), 5)
        assert found.tokens == tokens
        assert found.logprobs == pytest.approx(logprobs, abs=1e-6)
    assert cache.tokens == list(TOKENS[:-1])
    assert target.open_caches == 1


def test_texts_end_at_an_end_token(target: Counting, cache: Any) -> None:
    end = go_on((*TOKENS[:6], 3), 9)[0][2]
    whole = go_on((*TOKENS[:6], 3), 9)[0]
    [found] = roll_out(target, cache, [Beginning(6, 3, greedy)], 9, (end,))
    assert found.tokens == whole[: whole.index(end) + 1]
    [none] = roll_out(target, cache, [Beginning(6, 3, greedy)], 9, (3,))
    assert none.tokens == []
    assert target.open_caches == 1


def test_samples_share_their_draws_within_a_stream(target: Counting, cache: Any) -> None:
    def texts(stream: int) -> list[Sequence[int]]:
        choose = sampled(1.0, 0, 5, stream)
        beginnings = [Beginning(4, 2, choose)] * 2 + [Beginning(5, 2, choose)]
        return [c.tokens for c in roll_out(target, cache, beginnings, 8, ())]

    first = texts(0)
    assert first[0] == first[1]
    assert texts(0) == first
    assert texts(1) != first


def text_of(cache: Any, ends: Sequence[int] = ()) -> GreedyAnswer:
    return GreedyAnswer(cache, TOKENS, 2, go_on((0, 1), 20)[1], ends)


def mismatch(position: int, token: int) -> Mismatch:
    distribution = MODEL.distribution(TOKENS[:position])
    own = TOKENS[position]
    return Mismatch(
        position, token, own, math.log(distribution.prob(token)), np.zeros(9, np.float32)
    )


def test_the_judge_s_loss_is_likelihood_per_token(target: Counting, cache: Any) -> None:
    found = [mismatch(p, t) for p in (3, 9) for t in range(VOCABULARY) if t != TOKENS[p]]
    mine = losses("judge", target, text_of(cache), found, RolloutOptions(ahead=4))
    for each, loss in zip(found, mine, strict=True):
        theirs = [each.logprob, *go_on((*TOKENS[: each.position], each.token), 4)[1]]
        own = go_on(TOKENS[: each.position], 5)[1]
        assert loss == pytest.approx(sum(own) / 5 - sum(theirs) / 5, abs=1e-6)
    assert target.open_caches == 1


def test_accepting_the_targets_own_token_costs_nothing(target: Counting, cache: Any) -> None:
    """Both losses are differences to the target's own token."""
    found = [mismatch(p, TOKENS[p]) for p in (3, 9)]
    for kind in ("judge", "pivot"):
        mine = losses(kind, target, text_of(cache), found, RolloutOptions(ahead=4))
        assert mine == pytest.approx([0, 0], abs=1e-6)


def test_the_pivot_s_loss_is_agreement_with_the_greedy_text(target: Counting, cache: Any) -> None:
    rollouts = RolloutOptions(ahead=5, samples=3, temperature=1.0, top_k=0, seed=9)
    found = [mismatch(p, t) for p in (3, 9) for t in range(VOCABULARY) if t != TOKENS[p]]
    mine = losses("pivot", target, text_of(cache), found, rollouts)

    def agreement(position: int, token: int) -> float:
        reference = Counter(TOKENS[position + 1 : position + 6])
        total = 0
        for stream in range(3):
            choose = sampled(1.0, 0, 9, stream)
            context = [*TOKENS[:position], token]
            for _ in range(5):
                context.append(choose(MODEL.logits(tuple(context)), len(context)))
            total += (Counter(context[position + 1 :]) & reference).total()
        return total / 15

    for each, loss in zip(found, mine, strict=True):
        expected = agreement(each.position, each.own) - agreement(each.position, each.token)
        assert loss == pytest.approx(expected)
    assert len(set(mine)) > 3
    assert target.open_caches == 1


@pytest.mark.parametrize("drafter", ["nearly", "tree"])
def test_the_recorder_notes_where_walks_end_and_changes_nothing(drafter: str) -> None:
    params = SamplingParams(max_new_tokens=30)
    recorder = MismatchRecorder()
    steps = run(recorder, DRAFTERS[drafter], params)
    assert text(steps) == text(run(Greedy(), DRAFTERS[drafter], params))
    truth = Truth.of(params)
    expected = []
    for step in steps:
        node, context = -1, step.context
        for token in step.tokens[: step.drafted]:
            below = np.flatnonzero(step.draft.parents == node).tolist()
            node = next(c for c in below if step.draft.tokens[c] == token)
            context = (*context, token)
        for child in np.flatnonzero(step.draft.parents == node).tolist():
            expected.append((context, int(step.draft.tokens[child])))
    assert [(e.position, e.token) for e in recorder.found] == [(len(c), t) for c, t in expected]
    assert recorder.found
    for each, (context, token) in zip(recorder.found, expected, strict=True):
        distribution = truth.soft(context)
        unsure = -float(distribution.probs @ np.log(distribution.probs + 1e-5))
        assert each.own == truth.own(context) != token
        assert each.logprob == pytest.approx(math.log(distribution.prob(token)))
        state = hidden_state((*context, token))
        assert each.features == pytest.approx(
            features(distribution, unsure, each.own, token, state)
        )


def engine(drafter: str = "recycling") -> Any:
    return make_engine(restless(), drafter=drafter, nodes=8, depth=4)


@pytest.mark.parametrize("kind", ["judge", "pivot"])
def test_a_prompt_becomes_labelled_examples(kind: Any) -> None:
    made = engine()
    rule = made.decoder.verifier
    options: dict[str, Any] = {"new_tokens": 24, "rollouts": RolloutOptions(ahead=4), "seed": 1}
    few = collect(made, kind, "the quick fox", per_prompt=5, **options)
    assert made.decoder.verifier is rule
    assert few.features.shape == (5, HIDDEN + 4)
    assert few.losses.shape == (5,)
    assert np.isfinite(few.losses).all()
    again = collect(engine(), kind, "the quick fox", per_prompt=5, **options)
    assert np.array_equal(again.features, few.features)
    assert np.array_equal(again.losses, few.losses)


def test_a_text_without_mismatches_gives_none() -> None:
    labelled = collect(
        engine("prompt-lookup"),
        "judge",
        "fox",
        new_tokens=1,
        per_prompt=5,
        rollouts=RolloutOptions(ahead=1),
        seed=0,
    )
    assert labelled.features.shape == (0, HIDDEN + 4)


def examples(seed: int = 0) -> tuple[Any, Any, Any]:
    """Losses that the hidden state tells, of 30 prompts."""
    generator = np.random.default_rng(seed)
    found = generator.normal(size=(600, 4 + HIDDEN)).astype(np.float32)
    return found, found[:, 5] + 0.3 * generator.normal(size=600), np.repeat(np.arange(30), 20)


OPTIONS: dict[str, Any] = {
    "hidden_size": HIDDEN,
    "margin": 0.5,
    "cost": 2.0,
    "penalty": 0.01,
    "held_out": 0.2,
    "seed": 3,
    "metadata": {"command": "here", "kind": "ignored"},
}


@pytest.mark.parametrize(("kind", "width", "rate"), [("judge", 5, 0.69), ("pivot", 9, 0.31)])
def test_a_head_learns_what_the_hidden_state_tells(kind: Any, width: int, rate: float) -> None:
    head, quality = train_head(kind, *examples(), **OPTIONS)
    assert head.weight.shape == (width,)
    assert head.metadata["kind"] == kind
    assert head.metadata["command"] == "here"
    assert "auc" in head.metadata["held_out"]
    assert quality.prompts == 6
    assert quality.examples == 120
    assert quality.base_rate == pytest.approx(rate, abs=0.12)
    assert quality.auc.low > 0.9
    assert quality.logprob_auc.low < 0.5 < quality.logprob_auc.high


def test_labels_that_nothing_tells_are_not_learned() -> None:
    """Negative control: with shuffled losses the held-out figures are those of chance."""
    found, loss, prompts = examples()
    shuffled = np.random.default_rng(5).permutation(loss)
    _, quality = train_head("judge", found, shuffled, prompts, **OPTIONS)
    assert quality.auc.low < 0.5 < quality.auc.high


def test_one_class_alone_is_refused() -> None:
    with pytest.raises(InvalidOption, match="of one class"):
        train_head("judge", *examples(), **(OPTIONS | {"margin": 99.0}))


def parity(tokens: Sequence[int]) -> float:
    """A task: a right answer holds an even number of token 1."""
    return float(list(tokens).count(1) % 2 == 0)


def test_graded_losses_are_those_of_the_task(target: Counting, cache: Any) -> None:
    """Judge: recomputed from the table; an own text that is graded otherwise changes them."""
    found = [
        Mismatch(position, token, TOKENS[position], -1.0, np.zeros(4 + HIDDEN, np.float32))
        for position in (4, 9, 15)
        for token in range(VOCABULARY)
        if token != TOKENS[position]
    ]
    text = GreedyAnswer(cache, TOKENS, 2, [0.0] * 20, ())
    options = RolloutOptions(ahead=7)
    expected = []
    for each in found:
        answer = [*TOKENS[2 : each.position], each.token]
        answer += go_on((*TOKENS[: each.position], each.token), 7)[0]
        expected.append(parity(TOKENS[2:]) - parity(answer))
    assert losses("judge", target, text, found, options, parity) == expected
    assert len(set(expected)) == 2
    other = losses("judge", target, text, found, options, lambda tokens: 1 - parity(tokens))
    assert other == [-each for each in expected]


def test_graded_pivots_compare_both_tokens_by_the_same_draws(target: Counting, cache: Any) -> None:
    """The mean over streams; at temperature near 0 the difference of two greedy continuations."""
    found = [
        Mismatch(9, token, TOKENS[9], -1.0, np.zeros(4 + HIDDEN, np.float32))
        for token in range(VOCABULARY)
    ]
    text = GreedyAnswer(cache, TOKENS, 2, [0.0] * 20, ())
    cold = RolloutOptions(ahead=6, samples=3, temperature=1e-4)

    def ends(token: int) -> float:
        return parity([*TOKENS[2:9], token, *go_on((*TOKENS[:9], token), 6)[0]])

    expected = [ends(TOKENS[9]) - ends(each.token) for each in found]
    assert losses("pivot", target, text, found, cold, parity) == pytest.approx(expected)
    assert expected[TOKENS[9]] == 0
    warm = losses("pivot", target, text, found, RolloutOptions(6, 4, 1.0, 0, 3), parity)
    assert all(round(each * 4) == pytest.approx(each * 4) for each in warm)
    assert warm != losses("pivot", target, text, found, RolloutOptions(6, 4, 1.0, 0, 8), parity)
