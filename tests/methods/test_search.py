"""First-finish search: who wins, what it costs, and what becomes of the others."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.stats import chisquare
from tests.helpers.tiny_model import tiny_tokenizer

from paceline.core.types import SamplingParams
from paceline.drafters.base import NoDrafter
from paceline.drafters.recycling import Recycling
from paceline.engine.engine import Engine
from paceline.engine.loop import AutoregressiveDecoder
from paceline.engine.stopping import StopRules
from paceline.errors import InvalidOption, PromptError
from paceline.methods.first_finish import FirstFinish, first_finish
from paceline.models.text import Tokenizer
from paceline.policy.controller import Fixed
from paceline.proof.tabular import TabularCache, TabularModel, TabularTarget
from paceline.verifiers.matching import Coupled

VOCABULARY, EOS = 8, 2
MODEL = TabularModel(VOCABULARY, 1, seed=3, sharpness=1.2)
PROMPT = [1, 5]
PARAMS = SamplingParams(temperature=1.0, max_new_tokens=30)


class Target(TabularTarget):
    """Knows which caches are open."""

    def __init__(self) -> None:
        super().__init__(MODEL.logits, VOCABULARY)
        self.live: list[TabularCache] = []

    def open(self) -> TabularCache:
        self.live.append(super().open())
        return self.live[-1]

    def release(self, cache: TabularCache) -> None:
        super().release(cache)
        self.live.remove(cache)


def make(drafted: bool = False, batch: int = 8) -> tuple[Engine, Target]:
    target: Any = Target()
    drafter = Recycling(VOCABULARY) if drafted else NoDrafter()
    controller = Fixed(6, 3) if drafted else Fixed(1, 1)
    parts = target, drafter, Coupled(), controller, StopRules((EOS,), 4096)
    tokenizer = Tokenizer(tiny_tokenizer(320))
    return Engine(AutoregressiveDecoder(*parts), tokenizer, max_batch=batch), target


def naive(found: FirstFinish, engine: Engine, seeds: list[int], params: SamplingParams) -> None:
    """The same by decoding every sample to its end."""
    whole = [engine.generate(PROMPT, params, seed=seed) for seed in seeds]
    keys = [(c.finish_reason != "stop", len(c.token_ids), i) for i, c in enumerate(whole)]
    best = min(keys)[2]
    assert found.index == best
    assert found.seed == seeds[best]
    assert found.completion.token_ids == whole[best].token_ids
    for sample, full in zip(found.samples, whole, strict=True):
        assert sample.token_ids == full.token_ids[: len(sample.token_ids)]


@settings(max_examples=60)
@given(st.integers(1, 6), st.integers(0, 999), st.booleans(), st.integers(1, 7), st.integers(1, 30))
def test_the_shortest_wins_however_it_was_decoded(
    n: int, seed: int, drafted: bool, batch: int, most: int
) -> None:
    engine, target = make(drafted, batch)
    params = SamplingParams(temperature=1.0, seed=seed, max_new_tokens=most)
    found = first_finish(engine, PROMPT, n, params)
    assert engine.pending == 0
    assert target.live == []
    seeds = [seed]
    for index in range(1, n):
        state = np.random.SeedSequence((seed, index)).generate_state(1, np.uint64)
        seeds.append(int(state[0]))
    naive(found, make()[0], seeds, params)
    assert not found.lossless


def length_law(longest: int) -> np.ndarray:
    """Exact P(length = 1 .. longest) of one sample that ends by itself; the rest is cut off."""
    alive = {PROMPT[-1]: 1.0}
    out = []
    for _ in range(longest):
        after: dict[int, float] = {}
        for token, mass in alive.items():
            for following, share in enumerate(MODEL.distribution((token,)).probs):
                after[following] = after.get(following, 0.0) + mass * share
        out.append(after.pop(EOS))
        alive = after
    return np.array(out)


@pytest.mark.parametrize("drafted", [False, True])
def test_the_length_has_the_law_of_the_least_of_n(drafted: bool) -> None:
    n, searches, longest = 3, 400, PARAMS.max_new_tokens
    one = length_law(longest)
    longer = np.append(1.0, 1 - np.cumsum(one))  # P(length > 0 .. longest)
    least = -np.diff(longer**n)
    engine, _ = make(drafted)
    counts = np.zeros(longest)
    for seed in range(searches):
        found = first_finish(engine, PROMPT, n, PARAMS, seed=seed)
        if found.completion.finish_reason == "stop":
            counts[len(found.completion.token_ids) - 1] += 1

    def p_value(distribution: np.ndarray) -> float:
        bins = [0, 1, 2, 3, 4, 6, 8]  # at least five searches in each, the rest at the end
        expected = searches * np.append(np.add.reduceat(distribution, bins)[:-1], 0)
        expected[-1] = searches - expected.sum()
        seen = np.append(np.add.reduceat(counts, bins)[:-1], 0)
        seen[-1] = searches - seen.sum()
        assert expected.min() > 5
        return float(chisquare(seen, expected).pvalue)

    assert p_value(least) > 0.001
    assert p_value(one) < 1e-6  # lossy: this is not the law of a plain sample


def test_losers_stop_as_soon_as_they_cannot_win() -> None:
    engine, _ = make()
    found = first_finish(engine, PROMPT, 5, PARAMS, seed=4)
    least = len(found.completion.token_ids)
    assert [len(each.token_ids) for each in found.samples] == [least] * 5
    reasons = [each.finish_reason for each in found.samples]
    assert reasons[found.index] == "stop"
    assert "cancelled" in reasons
    assert found.total_tokens == 5 * least


def test_equal_lengths_go_to_the_lowest_index() -> None:
    engine, _ = make()
    ties = 0
    for seed in range(120):
        found = first_finish(engine, PROMPT, 4, PARAMS, seed=seed)
        ended = [i for i, each in enumerate(found.samples) if each.finish_reason == "stop"]
        ties += len(ended) > 1
        assert found.index == ended[0]
    assert ties > 5


def test_a_cut_text_never_beats_one_that_ended() -> None:
    engine, _ = make()
    params = SamplingParams(temperature=1.0, max_new_tokens=2)
    outcomes = set()
    for seed in range(30):
        found = first_finish(engine, PROMPT, 3, params, seed=seed)
        reasons = [each.finish_reason for each in found.samples]
        outcomes.add(found.completion.finish_reason)
        assert found.completion.finish_reason == ("stop" if "stop" in reasons else "length")
    assert outcomes == {"stop", "length"}


def test_an_interrupted_search_gives_memory_back() -> None:
    engine, target = make()
    calls = iter([False, True])
    found = first_finish(
        engine, PROMPT, 3, ignore_eos=True, temperature=1.0, interrupt=calls.__next__
    )
    assert found.completion.finish_reason == "cancelled"
    assert len(found.completion.token_ids) == 1
    assert target.live == []


def test_others_on_the_engine_are_left_alone() -> None:
    engine, target = make()
    other = engine.add(PROMPT, PARAMS, ignore_eos=True)
    first_finish(engine, PROMPT, 2, PARAMS)
    assert engine.pending == len(target.live) == 1
    assert engine.cancel(other) is not None


def test_bad_input() -> None:
    engine, target = make()
    for count in (0, 10**9):
        with pytest.raises(InvalidOption, match=f"n must be from 1 to 1024, not {count}"):
            first_finish(engine, PROMPT, count, PARAMS)
    with pytest.raises(InvalidOption, match="temperature above 0"):
        first_finish(engine, PROMPT, 2)
    with pytest.raises(InvalidOption, match="'heat' is unknown"):
        first_finish(engine, PROMPT, 2, PARAMS, heat=1)
    with pytest.raises(PromptError):
        first_finish(engine, [], 2, PARAMS)
    assert engine.pending == 0
    assert target.live == []
