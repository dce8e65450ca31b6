"""WAV files as samples, and what is no sound."""

from __future__ import annotations

import wave
from pathlib import Path

import numpy as np
import pytest

from paceline.audio.read import read_sound
from paceline.errors import InvalidOption


def write(path: Path, raw: bytes, width: int = 2, channels: int = 1, rate: int = 16_000) -> Path:
    with wave.open(str(path), "wb") as file:
        file.setsampwidth(width)
        file.setnchannels(channels)
        file.setframerate(rate)
        file.writeframes(raw)
    return path


@pytest.mark.parametrize("width", [1, 2, 3, 4])
def test_numbers_of_each_width_are_the_same_sound(width: int, tmp_path: Path) -> None:
    steps = np.array([-128, -1, 0, 1, 64, 127])
    whole = (steps + 128 if width == 1 else steps << (8 * width - 8)).tolist()
    raw = b"".join(each.to_bytes(width, "little", signed=width > 1) for each in whole)
    found = read_sound(write(tmp_path / "a.wav", raw, width))
    assert found.dtype == np.float32
    assert np.array_equal(found, (steps / 128).astype(np.float32))


def test_channels_are_mixed(tmp_path: Path) -> None:
    raw = np.array([[16384, 0], [-16384, -32768]], "<i2").tobytes()
    found = read_sound(write(tmp_path / "a.wav", raw, channels=2))
    assert np.array_equal(found, np.array([0.25, -0.75], np.float32))


def test_a_file_that_is_cut_short_gives_its_whole_samples(tmp_path: Path) -> None:
    path = write(tmp_path / "a.wav", np.arange(40, dtype="<i2").tobytes(), channels=2)
    path.write_bytes(path.read_bytes()[:-3])
    assert len(read_sound(path)) == 19


def test_what_is_no_sound_is_refused(tmp_path: Path) -> None:
    odd = tmp_path / "a.wav"
    for content in (b"", b"RIFF", b"ID3 and more", b"RIFF\0\0\0\0WAVEjunk"):
        odd.write_bytes(content)
        with pytest.raises(InvalidOption, match=r"cannot read .*a\.wav .*: give a WAV file"):
            read_sound(odd)
    with pytest.raises(InvalidOption, match="cannot read"):
        read_sound(tmp_path / "none.wav")


@pytest.mark.parametrize("rate", [1, 8_000, 48_000, 768_000])
def test_other_rates_are_refused(rate: int, tmp_path: Path) -> None:
    with pytest.raises(InvalidOption, match=f"{rate} samples a second"):
        read_sound(write(tmp_path / "a.wav", b"\0" * 8, rate=rate))
