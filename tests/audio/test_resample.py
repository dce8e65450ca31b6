"""Sound of other rates: tones stay, what is too high goes, and sums are exact."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Sequence

import numpy as np
import pytest

from paceline.audio import resample
from paceline.audio.mel import RATE
from paceline.audio.resample import Resampler, _weights

RATES = (1_000, 8_000, 11_025, 22_050, 24_000, 44_100, 48_000, 96_000, 768_000)


def made(rate: int, *parts: np.ndarray) -> np.ndarray:
    resampler = Resampler(rate)
    return np.concatenate([*(resampler.feed(each) for each in parts), resampler.end()])


def tone(rate: int, hertz: float, seconds: float = 1.0) -> np.ndarray:
    return 0.5 * np.cos(2 * np.pi * hertz * np.arange(round(rate * seconds)) / rate)


def inner(samples: np.ndarray) -> np.ndarray:
    return samples[2000:-2000]


def worst(found: np.ndarray, hertz: float) -> float:
    return float(np.abs(inner(found) - inner(tone(RATE, hertz))).max())


@pytest.mark.parametrize("rate", RATES)
def test_tones_stay_as_they_are(rate: int) -> None:
    for hertz in (0.0, 100.0, 0.44 * min(rate, RATE)):
        found = made(rate, tone(rate, hertz))
        assert found.dtype == np.float32
        assert len(found) == RATE
        assert worst(found, hertz) < 1e-4


def test_straight_lines_would_not_do() -> None:
    straight = np.interp(np.arange(RATE) / RATE, np.arange(8000) / 8000, tone(8000, 3000.0))
    assert worst(straight, 3000.0) > 0.1


@pytest.mark.parametrize("rate", [each for each in RATES if each > RATE])
def test_what_is_too_high_is_not_heard_as_something_else(rate: int) -> None:
    assert np.abs(inner(made(rate, tone(rate, 8_100.0)))).max() < 1e-4
    # Samples that are left out alone would be a tone of 7900 Hz.
    assert np.abs(tone(48_000, 8_100.0)[::3]).max() > 0.4


@pytest.mark.parametrize("count", [0, 1, 2, 3, 100])
@pytest.mark.parametrize("rate", [8_000, 44_100, 48_000, 1])
def test_short_sounds_have_their_length(rate: int, count: int) -> None:
    assert len(made(rate, np.full(count, 0.5))) == math.ceil(count * RATE / rate)


def test_where_pieces_end_does_not_matter(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(resample, "_PIECE", 1000)
    sound = np.random.default_rng(3).uniform(-1, 1, 30_000)
    whole = made(44_100, sound)
    for cuts in ([1], [0, 5, 29_999], list(range(0, 30_000, 700))):
        assert np.array_equal(made(44_100, *np.split(sound, cuts)), whole)
    assert not np.array_equal(made(44_100, sound[1:]), whole[: len(whole) - 1])


def numbers(count: int) -> np.ndarray:
    state, found = 1, []
    for _ in range(count):
        state = (state * 1103515245 + 12345) % 2**31
        found.append(state / 2**30 - 1)
    return np.array(found)


def test_bits_are_the_same_everywhere() -> None:
    digest = hashlib.sha256()
    for rate in (8_000, 44_100, 48_000):
        digest.update(made(rate, numbers(3000)).tobytes())
    assert digest.hexdigest()[:16] == "33da4a5792a71c29"


def exact(reach: int, up: int, down: int) -> Sequence[bool]:
    # Whether sums are those of whole arithmetic, whatever their order.
    matrix = _weights(reach, up, down, 0, 8)
    sound = np.rint(numbers(len(matrix)) * 2**23) / 2**23
    found = sound @ matrix
    return [math.fsum(sound * column) == each for column, each in zip(matrix.T, found, strict=True)]


@pytest.mark.parametrize("rate", RATES)
def test_sums_are_not_rounded(rate: int, monkeypatch: pytest.MonkeyPatch) -> None:
    common = math.gcd(rate, RATE)
    up, down = RATE // common, rate // common
    reach = math.ceil(48 * max(1, rate / RATE))
    assert np.abs(_weights(reach, up, down, 0, 8)).sum(axis=0).max() < 4
    assert all(exact(reach, up, down))
    _weights.cache_clear()
    monkeypatch.setattr(resample, "_TABLE_BITS", 50)
    assert not all(exact(reach, up, down))
    _weights.cache_clear()
