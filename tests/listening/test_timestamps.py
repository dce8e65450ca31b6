"""Timestamps as a constraint, and the segments that they cut."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace

import numpy as np
import pytest

from paceline.core.types import SamplingParams
from paceline.errors import InvalidOption
from paceline.listening.timestamps import Segment, TranscriptRules, TranscriptState, segments_of
from paceline.sampling.randomness import KeyedRandomness
from paceline.sampling.sampler import Sampler

# Words are 0 to 19, of which 7 is no speech; the text ends with 20, and times begin at 21.
RULES = TranscriptRules(vocabulary=121, end=20, times=21, suppressed=(7,), first=(3, 20))
WORDS = set(range(20)) - {7}


def allowed(*said: int, rules: TranscriptRules = RULES) -> set[int]:
    state = rules.start()
    found = set(np.flatnonzero(state.mask(said)).tolist())
    state.commit(said)
    assert set(np.flatnonzero(state.mask()).tolist()) == found  # a path is as good as a text
    return found


def test_a_text_begins_in_the_first_second() -> None:
    assert allowed() == set(range(21, 72))


def test_words_follow_the_first_time() -> None:
    assert allowed(25) == WORDS | {20}


def test_a_segment_ends_behind_its_beginning() -> None:
    assert allowed(25, 4) == WORDS | {20} | set(range(26, 121))


def test_a_segment_that_ended_is_followed_by_another_or_by_the_end() -> None:
    assert allowed(25, 4, 60) == {20} | set(range(60, 121))
    assert allowed(25, 4, 60, 60) == WORDS | {20}
    assert allowed(25, 4, 60, 60, 5) == WORDS | {20} | set(range(61, 121))


def test_after_the_end_comes_the_end() -> None:
    assert allowed(25, 4, 60, 20) == {20}


def test_without_timestamps_there_are_none() -> None:
    plain = TranscriptRules(121, 20, 21, (7,), (3, 20), timed=False)
    assert allowed(rules=plain) == WORDS - {3}
    assert allowed(4, rules=plain) == WORDS | {20}


def test_only_what_is_allowed_is_valid() -> None:
    state = RULES.start()
    assert state.valid([25, 4, 60, 60]) == 4
    assert state.valid([25, 4, 60, 59]) == 3  # times never fall
    assert state.valid([25, 7]) == 1
    assert state.valid([90]) == 0
    assert state.mask([90]).all()
    with pytest.raises(InvalidOption, match="rules of timestamps"):
        state.commit([25, 4, 24])
    state.commit([25, 4])
    assert state.valid([60, 60]) == 2
    assert state.valid([25]) == 0


def test_a_time_comes_where_times_together_are_more_probable_than_any_word() -> None:
    """As transformers has it: whatever one time is beside the best word."""
    state: TranscriptState = TranscriptRules(121, end=19, times=21, suppressed=(7, 20)).start()
    state.commit([25, 4])
    rng = np.random.default_rng(2)
    theirs = processor([25, 4])
    forced = 0
    for _ in range(50):
        drawn = rng.normal(size=121) * 3
        drawn[:21] += rng.uniform(0, 9)
        logits = np.where(state.mask(), drawn, -np.inf).astype(np.float32)
        found, wanted = state.read(logits.copy()), theirs(logits.copy())
        np.testing.assert_array_equal(np.isfinite(found), np.isfinite(wanted))
        forced += not np.isfinite(found[:21]).any()
    assert 5 < forced < 45
    plain = TranscriptRules(121, 20, 21, timed=False).start()
    words = np.where(plain.mask(), logits, -np.inf)
    np.testing.assert_array_equal(plain.read(words.copy()), words)


@pytest.mark.parametrize(("temperature", "alone"), [(0.0, False), (1.0, False), (0.0, True)])
def test_a_sampler_heeds_what_logits_say(temperature: float, alone: bool) -> None:
    logits = np.full(121, -5.0, np.float32)
    logits[4], logits[100] = 9.0, 8.9
    logits[101:] = 8.8 if not alone else -5.0
    state = RULES.start()
    state.commit([25, 4])
    sampler = Sampler(SamplingParams(temperature=temperature), [], state)
    found = sampler.distribution(logits, (5,))
    assert found.prob(4) == (1 if alone else 0)
    token = sampler.sample(logits, (5,), 3, KeyedRandomness(1))
    assert (token == 4) if alone else token >= 100
    assert logits[4] == 9  # they are the target's


def processor(said: list[int]) -> Callable[[np.ndarray], np.ndarray]:
    torch = pytest.importorskip("torch")
    found = pytest.importorskip("transformers").generation.logits_process
    config = SimpleNamespace(
        no_timestamps_token_id=20,
        eos_token_id=19,
        bos_token_id=19,
        max_initial_timestamp_index=50,
        forced_decoder_ids=None,
    )
    rule = found.WhisperTimeStampLogitsProcessor(config, begin_index=1)

    def run(logits: np.ndarray) -> np.ndarray:
        out: np.ndarray = rule(torch.tensor([[20, *said]]), torch.tensor(logits[None])).numpy()[0]
        return out

    return run


def test_segments_lie_between_times() -> None:
    found, heard = segments_of([21, 1, 2, 71, 71, 3, 120, 20], 20, 21, 30.0)
    assert found == [Segment(0, 1.0, (1, 2)), Segment(1.0, 1.98, (3,))]
    assert heard == 30.0


def test_a_window_ends_where_a_segment_was_begun() -> None:
    found, heard = segments_of([21, 1, 71, 71], 20, 21, 30.0)
    assert found == [Segment(0, 1.0, (1,))]
    assert heard == 1.0


def test_words_without_an_end_last_to_that_of_the_window() -> None:
    assert segments_of([21, 1, 4], 20, 21, 12.5) == ([Segment(0, 12.5, (1, 4))], 12.5)
    assert segments_of([21, 1, 71, 71, 4], 20, 21, 12.5) == ([Segment(0, 1.0, (1,))], 1.0)
    assert segments_of([21, 20], 20, 21, 12.5) == ([], 12.5)
