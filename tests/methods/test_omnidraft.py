"""OmniDraft: n-grams, the correction and its gradient, and what is learnt of accepted text."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from tests.drafters.test_string_level import PAIRS, Pair
from tests.helpers.decoding_loop import decode
from tests.helpers.vocabularies import letters

from paceline.core.target import Output, Rows
from paceline.core.types import Capabilities, SamplingParams
from paceline.errors import InvalidOption
from paceline.methods.omnidraft import Correction, NgramCache, OmniDraft
from paceline.proof.compare import max_error
from paceline.proof.oracle import enumerate_distribution
from paceline.proof.tabular import TabularTarget
from paceline.sampling.generation import Generation
from paceline.sampling.randomness import Randomness
from paceline.verifiers.matching import Coupled, SampleMatch


class Hidden(TabularTarget):
    """A table whose hidden state names the last token."""

    @property
    def capabilities(self) -> Capabilities:
        return replace(super().capabilities, hidden_states=True, hidden_size=8)

    def forward(self, passes: Sequence[Rows]) -> list[Output]:
        outputs = super().forward([replace(each, hidden=False) for each in passes])
        return [
            out._replace(
                hidden=np.eye(8, dtype=np.float32)[[each.tokens[each.root]] * len(out.logits)]
            )
            for out, each in zip(outputs, passes, strict=True)
        ]


def learner(pair: Pair, noise: bool, **options: Any) -> OmniDraft:
    model = Hidden(pair.small.logits, pair.small.vocabulary)
    return OmniDraft(model, pair.translation, noise, **options)


@pytest.mark.parametrize(("target", "draft"), PAIRS[:3])
@pytest.mark.parametrize("ngrams", [True, False])
def test_the_law_is_the_target_s_while_it_learns(target: str, draft: str, ngrams: bool) -> None:
    """By enumeration: what it learnt earlier in a text depends on the draws, too."""
    pair = Pair(letters(target), letters(draft))
    params = SamplingParams(temperature=1.0, max_new_tokens=4)

    def run(randomness: Randomness) -> tuple[int, ...]:
        decoder = pair.decoder(SampleMatch(), learner(pair, False, rate=0.5, ngrams=ngrams), 2)
        sequence = Generation.start(0, [0], params)
        sequence.randomness = randomness
        decoder.open(sequence)
        while sequence.finish_reason is None:
            decoder.step([sequence])
        return tuple(sequence.generated)

    assert max_error(enumerate_distribution(run), pair.truth(params)) < 1e-12


@pytest.mark.parametrize("temperature", [0.0, 1.0])
@pytest.mark.parametrize("ngrams", [True, False])
def test_acceptance_of_samples_rises_and_tokens_stay(temperature: float, ngrams: bool) -> None:
    first = last = nothing = 0
    for seed in range(3):
        pair = Pair(letters("a b c ab abc"), letters("a b c bc ca"), seed, depth=1)
        drafter = learner(pair, True, rate=0.3, ngrams=ngrams)
        still = learner(pair, True, rate=0, ngrams=ngrams)
        for round in range(16):
            params = SamplingParams(temperature, max_new_tokens=20, seed=round)
            prompts = [[0], [1, 2]]
            found = decode(pair.decoder(Coupled(), drafter, 3), prompts, params)
            plain = decode(pair.decoder(Coupled(), None, 3), prompts, params)
            assert [s.generated for s in found] == [s.generated for s in plain]
            accepted = sum(s.stats.accepted_tokens for s in found)
            first += accepted if round < 3 else 0
            last += accepted if round >= 13 else 0
            if round >= 13:
                others = decode(pair.decoder(Coupled(), still, 3), prompts, params)
                nothing += sum(s.stats.accepted_tokens for s in others)
    if temperature:  # a greedy table goes round in one short text
        assert last > 1.1 * first
        assert last > 1.1 * nothing


def test_n_grams_are_kept_from_accepted_text_and_merged() -> None:
    pair = Pair(letters("a b c ab abc"), letters("a b c bc ca"), seed=1)
    drafter = learner(pair, True, ngrams=True)
    decode(pair.decoder(Coupled(), drafter, 3), [[0]], SamplingParams(1.0, max_new_tokens=60))
    assert drafter.ngrams.longest([0, 1, 2]) == (3, 2)  # a, b: ab
    assert drafter.ngrams.longest([0, 3, 0]) == (4, 2)  # a, bc: abc
    drafter.reset()
    assert len(drafter.ngrams) == 0


def test_the_cache_forgets_what_was_learnt_longest_ago(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("paceline.methods.omnidraft._ENTRIES", 2)
    cache = NgramCache()
    for ngram, token in (((1, 2), 5), ((1, 2, 3), 6), ((1, 2), 5), ((4, 4), 7), ((9,), 8)):
        cache.learn(ngram, token)
    assert len(cache) == 2
    assert cache.longest([1, 2, 3]) == (5, 2)
    assert cache.longest([9]) is None


def test_a_step_follows_the_gradient() -> None:
    """Of cross-entropy, by finite differences along the step."""
    rng = np.random.default_rng(0)
    correction = Correction(6, 8, 3, 1e-3)
    hidden, base = rng.standard_normal((2, 8)).astype(np.float32)
    ids, base = np.array([1, 4, 5]), base[:3]
    p = np.array([0.2, 0.7, 0.1], np.float32)

    def loss() -> tuple[float, Any]:
        logits = (base + correction.at(ids, hidden)).astype(np.float64)
        q = np.exp(logits) / np.exp(logits).sum()
        return float(-(p * np.log(q)).sum()), (q - p).astype(np.float32)

    for _ in range(3):  # U is zero at first, and V gets a gradient later
        before, gradient = loss()
        up, down = correction._up.copy(), correction._down.copy()
        correction.step(ids, hidden, gradient)
        moved = ((correction._up - up) ** 2).sum() + ((correction._down - down) ** 2).sum()
        assert before - loss()[0] == pytest.approx(moved / 1e-3, rel=0.05)
    assert (correction.at(np.array([0, 2]), hidden) == 0).all()


def test_numbers_out_of_range_are_refused() -> None:
    pair = Pair(letters("a b"), letters("a b ab"))
    with pytest.raises(InvalidOption, match="rank must be 1 or more"):
        learner(pair, True, rank=0)
    with pytest.raises(InvalidOption, match="rate must be from 0"):
        learner(pair, True, rate=1.0)
