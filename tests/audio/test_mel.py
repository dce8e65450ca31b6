"""Log-mel frames beside exact integers, float64 and transformers' feature extractor."""

from __future__ import annotations

import hashlib

import numpy as np
import pytest

from paceline.audio import mel
from paceline.audio.mel import HOP, RATE, WINDOW, MelStream, log_mel
from paceline.errors import InvalidOption


def sound(count: int = 2 * RATE, loud: int = 2**14) -> np.ndarray:
    """Return chirps under noise, of 16 bits, without a library's random numbers."""
    at = np.arange(count, dtype=np.int64)
    noise = (at * 1103515245 + 12345) // 65536 % 512 - 256
    chirp = np.where(at * (at // 64) // 2048 % 2, loud, -loud)
    return ((chirp + noise) / 32768).astype(np.float32)


def exact(samples: np.ndarray, mels: int) -> np.ndarray:
    """Return the same by NumPy's transform, in float64."""
    filters = pytest.importorskip("transformers").WhisperFeatureExtractor(mels).mel_filters
    padded = np.pad(samples.astype(np.float64), 200, mode="reflect")
    frames = np.lib.stride_tricks.sliding_window_view(padded, 400)[::HOP][: len(samples) // HOP]
    window = 0.5 - 0.5 * np.cos(2 * np.pi * np.arange(400) / 400)
    power = np.abs(np.fft.rfft(frames * window)) ** 2
    logs = np.log10(np.maximum(power @ filters, 1e-10))
    return (np.maximum(logs, logs.max() - 8) + 4) / 4


@pytest.mark.parametrize("mels", [80, 128])
@pytest.mark.parametrize("loud", [2**14, 40])
def test_frames_are_those_of_float64(mels: int, loud: int) -> None:
    samples = sound(loud=loud)
    found = log_mel(samples, mels)
    assert found.shape == (len(samples) // HOP, mels)
    assert found.dtype == np.float32
    assert np.abs(found - exact(samples, mels)).max() < 1e-6


@pytest.mark.parametrize("mels", [80, 128])
def test_frames_are_those_of_transformers(mels: int) -> None:
    extractor = pytest.importorskip("transformers").WhisperFeatureExtractor(mels)
    samples = np.pad(sound(), (0, WINDOW - 2 * RATE))
    theirs = extractor(samples, sampling_rate=RATE, return_tensors="np")["input_features"][0].T
    # Its transform is rounded to float32: it is as far from float64 itself.
    assert np.abs(log_mel(samples, mels) - theirs).max() < 5e-5


def test_products_are_exact_in_any_order() -> None:
    samples = np.clip(sound(800) * 2, -1, 1)
    samples[::7] = np.float32(1) - np.float32(2**-23)
    frames = np.lib.stride_tricks.sliding_window_view(samples.astype(np.float64), 400)[::HOP]
    for numbers, tables in zip(mel._folded(frames), mel._tables(), strict=True):
        whole = (numbers * 2**23).astype(np.int64).astype(object)
        assert (whole == numbers * 2**23).all()
        for table, bits in zip(tables, (21, 42), strict=True):
            codes = (table * 2**bits).astype(np.int64).astype(object)
            assert (codes == table * 2**bits).all()
            found = np.array(numbers @ table * 2.0 ** (23 + bits)).astype(np.int64)
            assert np.array_equal(found, whole @ codes)
            most = np.abs(whole).astype(object) @ np.abs(codes)
            assert most.max() <= 2**53  # no partial sum can be rounded either


def test_frames_have_the_same_bits_everywhere() -> None:
    digest = hashlib.sha256(log_mel(sound()).tobytes() + log_mel(sound(), 128).tobytes())
    assert digest.hexdigest()[:16] == "aac4aefde40f0bbc"


def test_a_louder_word_clips_quieter_frames() -> None:
    quiet, loud = sound(loud=8), sound()
    quiet[:RATE] = 0
    both = np.concatenate([quiet, loud])
    assert log_mel(both)[: RATE // HOP - 2].min() > log_mel(quiet).min()


def test_silence_is_the_floor() -> None:
    assert (log_mel(np.zeros(RATE, np.float32)) == np.float32(-1.5)).all()


@pytest.mark.parametrize("samples", [np.zeros(200), np.zeros(0), np.zeros((2, 800))])
def test_too_little_sound_is_refused(samples: np.ndarray) -> None:
    with pytest.raises(InvalidOption, match="shorter than a frame"):
        log_mel(samples.astype(np.float32))


def test_odd_samples_are_refused() -> None:
    samples = sound()
    samples[7] = np.nan
    with pytest.raises(InvalidOption, match="not finite"):
        log_mel(samples)


@pytest.mark.parametrize("piece", [1, 333, 1000, 10_000])
@pytest.mark.parametrize("count", [1, 50, 201, 320, 4999, 9_677])
def test_a_stream_has_the_same_frames_in_whichever_pieces(count: int, piece: int) -> None:
    samples = sound(count)
    samples[count // 2 :] *= 1.5
    found, whole = [], MelStream(30)
    stream = MelStream(30)
    for begin in range(0, count, piece):
        found.append(stream.push(samples[begin : begin + piece]))
        assert len(found[-1]) % 30 == 0
    found.append(stream.end())
    wanted = [whole.push(samples), whole.end()]
    assert np.array_equal(np.concatenate(found), np.concatenate(wanted))
    assert len(stream.end()) == 0


def test_a_stream_of_one_chunk_is_the_whole_sound() -> None:
    samples = sound(9_677)
    stream = MelStream(10**6)
    assert stream.push(samples).shape == (0, 80)
    whole = np.pad(samples, (0, -len(samples) % (2 * HOP)))
    assert np.array_equal(stream.end(), log_mel(whole))


def test_a_stream_knows_nothing_louder_that_comes_later() -> None:
    quiet, loud = sound(RATE, loud=40), sound(RATE)
    first, second = (MelStream(10).push(np.concatenate([quiet, each])) for each in (quiet, loud))
    assert np.array_equal(first[:90], second[:90])
    usual = log_mel(np.concatenate([quiet, loud]))
    assert not np.array_equal(usual[:90], first[:90])


def test_a_stream_refuses_samples_that_are_not_finite() -> None:
    with pytest.raises(InvalidOption, match="not finite"):
        MelStream(10).push(np.full(10, np.nan, np.float32))
