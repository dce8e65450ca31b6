"""WAV files as samples, and what is no sound."""

from __future__ import annotations

import io
import os
import struct
import sys
import wave
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from paceline.audio.decoders import mp3_frame
from paceline.audio.mel import RATE
from paceline.audio.read import TooLong, live_sound, read_sound
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


def test_a_file_that_is_cut_short_gives_its_whole_samples(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path = write(tmp_path / "a.wav", np.arange(40, dtype="<i2").tobytes(), channels=2)
    path.write_bytes(path.read_bytes()[:-3])
    assert len(read_sound(path)) == 19
    assert "a.wav is cut short: 3 bytes of its sound are missing; the" in caplog.text


def chunk(name: bytes, content: bytes, size: int | None = None) -> bytes:
    said = len(content) if size is None else size
    return name + struct.pack("<I", said) + content + b"\0" * (len(content) % 2)


def form(code: int, channels: int, width: int, rate: int = RATE, more: bytes = b"") -> bytes:
    step = width * channels
    return chunk(
        b"fmt ", struct.pack("<HHIIHH", code, channels, rate, rate * step, step, 8 * width) + more
    )


def wav(*chunks: bytes, head: bytes = b"RIFF") -> bytes:
    return head + b"\xff\xff\xff\xffWAVE" + b"".join(chunks)


def read(path: Path, content: bytes) -> np.ndarray:
    path.write_bytes(content)
    return read_sound(path)


FOUR = np.array([0.5, -0.25, 1.0, 0.0])
SHORT = (FOUR * 32767).astype("<i2")


@pytest.mark.parametrize("kind", ["<f4", "<f8"])
def test_floats_are_clipped(kind: str, tmp_path: Path) -> None:
    numbers = np.array([0.5, -0.25, 1.5, -7.0], kind)
    content = wav(form(3, 1, numbers.itemsize), chunk(b"data", numbers.tobytes()))
    found = read(tmp_path / "a.wav", content)
    assert np.array_equal(found, [0.5, -0.25, 1, -1])


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
def test_what_is_no_number_is_refused(value: float, tmp_path: Path) -> None:
    numbers = np.array([0.5, value], "<f4")
    with pytest.raises(InvalidOption, match=r"a\.wav has samples that are not finite: convert"):
        read(tmp_path / "a.wav", wav(form(3, 1, 4), chunk(b"data", numbers.tobytes())))


def test_chunks_before_the_samples_are_passed_over(tmp_path: Path) -> None:
    extra = struct.pack("<HHIH", 22, 16, 0, 1) + b"\0" * 14
    notes = chunk(b"LIST", b"odd" * 25)
    whole = wav(
        notes, form(0xFFFE, 1, 2, more=extra), notes, chunk(b"data", SHORT.tobytes()), notes
    )
    for content in (whole, b"RF64" + whole[4:]):
        assert np.array_equal(read(tmp_path / "a.wav", content), (SHORT / 2**15).astype("f4"))


@pytest.mark.parametrize("size", [0, 0x7FFFFFFF, 0xFFFFFFFF])
def test_a_writer_that_knew_no_size_is_read_to_the_end(
    size: int, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    content = wav(form(1, 1, 2), chunk(b"data", SHORT.tobytes(), size))
    assert len(read(tmp_path / "a.wav", content)) == 4
    assert not caplog.records


def test_32_channels_are_mixed(tmp_path: Path) -> None:
    numbers = np.arange(-64, 64, dtype="<i2").reshape(4, 32)
    content = wav(form(1, 32, 2), chunk(b"data", numbers.tobytes()))
    assert np.array_equal(read(tmp_path / "a.wav", content), numbers.mean(axis=1) / 2**15)


def test_a_long_file_is_read_in_blocks(tmp_path: Path) -> None:
    numbers = np.random.default_rng(2).integers(-(2**15), 2**15, 2_000_001).astype("<i2")
    content = wav(form(1, 3, 2), chunk(b"data", numbers.tobytes()))
    wanted = numbers.reshape(-1, 3).mean(axis=1) / 2**15
    found = read(tmp_path / "a.wav", content)
    assert len(found) == 666_667
    assert np.abs(found[: len(wanted)] - wanted).max() < 1e-6


def test_other_rates_become_that_of_models(tmp_path: Path) -> None:
    hertz = 440.0
    for rate in (8_000, 44_100, 48_000, 768_000):
        wave = np.cos(2 * np.pi * hertz * np.arange(rate // 2) / rate)
        content = wav(form(3, 1, 4, rate), chunk(b"data", wave.astype("<f4").tobytes()))
        found = read(tmp_path / "a.wav", content)
        wanted = np.cos(2 * np.pi * hertz * np.arange(8000) / RATE)
        assert len(found) == 8000
        assert np.abs(found - wanted)[1000:-1000].max() < 1e-4


@pytest.mark.parametrize("rate", [0, 1, 999, 768_001, 2**31])
def test_rates_of_no_speech_are_refused(rate: int, tmp_path: Path) -> None:
    content = wav(form(1, 1, 1, rate), chunk(b"data", b"abcd"))
    with pytest.raises(InvalidOption, match=rf"a\.wav says that it has {rate} samples a second"):
        read(tmp_path / "a.wav", content)


SOUND = chunk(b"data", b"abcd")
DAMAGED = [
    ("it is empty", b""),
    ("it has no samples", wav(form(1, 1, 2), chunk(b"data", b""))),
    ("it has no samples", wav(form(1, 1, 2), chunk(b"LIST", b""))),
    ("it has no samples", wav(b"\0" * 400)),
    ("it has no samples", wav(chunk(b"LIST", b"") * 2000, form(1, 1, 2), SOUND)),
    ("it does not say how its samples are written", wav(SOUND)),
    (
        "1 channels of 16 bits in 3 bytes",
        wav(chunk(b"fmt ", struct.pack("<HHIIHH", 1, 1, RATE, 0, 3, 16)), SOUND),
    ),
    ("0 channels of 16 bits in 0 bytes", wav(form(1, 0, 2), SOUND)),
    ("1 channels of 40 bits in 5 bytes", wav(form(1, 1, 5), SOUND)),
    ("1 channels of 16 bits in 2 bytes", wav(form(3, 1, 2), SOUND)),
]


@pytest.mark.parametrize(("said", "content"), DAMAGED)
def test_what_is_damaged_is_refused(said: str, content: bytes, tmp_path: Path) -> None:
    with pytest.raises(InvalidOption, match=rf"a\.wav is damaged \({said}\): copy or record it"):
        read(tmp_path / "a.wav", content)


def test_any_cut_is_heard_or_refused(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    content = wav(form(1, 1, 2), SOUND)
    for cut in range(len(content)):
        caplog.clear()
        if cut < len(content) - 2:
            with pytest.raises(InvalidOption, match=r"a\.wav"):
                read(tmp_path / "a.wav", content[:cut])
        else:
            assert len(read(tmp_path / "a.wav", content[:cut])) == 1
            assert "a.wav is cut short" in caplog.text


def test_what_cannot_be_opened_is_refused(tmp_path: Path) -> None:
    for path in (tmp_path, tmp_path / "none.wav"):
        with pytest.raises(InvalidOption, match=rf"{path} cannot be read \(.*give a sound file"):
            read_sound(path)


def test_a_sound_without_an_end_is_refused(tmp_path: Path) -> None:
    content = wav(form(1, 1, 2), chunk(b"data", bytes(2 * RATE * 3)))
    assert len(read(tmp_path / "a.wav", content)) == len(read_sound(io.BytesIO(content), 3))
    with pytest.raises(TooLong, match="the sound lasts more than 2 s: give it in parts"):
        read_sound(io.BytesIO(content), 2)


def test_a_device_without_an_end_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("paceline.audio.read._STREAM", 1 << 20)
    with pytest.raises(InvalidOption, match="/dev/zero has more than 1 MiB that are no WAV"):
        read_sound(Path("/dev/zero"))


@pytest.fixture
def given(monkeypatch: pytest.MonkeyPatch) -> Callable[[bytes], np.ndarray]:
    def run(content: bytes) -> np.ndarray:
        theirs, ours = os.pipe()
        os.write(ours, content)
        os.close(ours)
        with os.fdopen(theirs, "r") as stream:
            monkeypatch.setattr("sys.stdin", stream)
            return read_sound(Path("-"))

    return run


def test_standard_input_is_read(given: Callable[[bytes], np.ndarray]) -> None:
    content = wav(form(1, 1, 2), chunk(b"data", SHORT.tobytes(), 0xFFFFFFFF))
    assert np.array_equal(given(content), (SHORT / 2**15).astype("f4"))
    with pytest.raises(InvalidOption, match="standard input is damaged"):
        given(b"")
    with pytest.raises(InvalidOption, match=r"standard input cannot be read .*no WAV file"):
        given(b"junk" * 100)
    with pytest.raises(InvalidOption, match=r"in code 7.*give it as a file"):
        given(wav(form(7, 1, 1), chunk(b"data", b"abcd")))


@pytest.mark.parametrize("rate", [RATE, 24_000, 44_100])
def test_a_sound_that_comes_is_that_of_a_file(rate: int, tmp_path: Path) -> None:
    raw = np.random.default_rng(1).integers(-9000, 9000, 3 * rate // 2).astype("<i2").tobytes()
    whole = read_sound(write(tmp_path / "a.wav", raw, rate=rate))
    assert len(whole) == 1.5 * RATE
    for content, told in ((raw, rate), ((tmp_path / "a.wav").read_bytes(), 8_000)):
        parts = [*live_sound(io.BytesIO(content), told)]
        assert np.array_equal(np.concatenate(parts), whole)
        # It comes as it is said: a twentieth of a second at once.
        assert max(map(len, parts)) < 0.1 * RATE
        assert len(parts) < 40
    wide = np.repeat(np.frombuffer(raw, "<i2"), 32).tobytes()
    content = write(tmp_path / "a.wav", wide, channels=32, rate=rate).read_bytes()
    parts = [*live_sound(io.BytesIO(content))]
    assert np.array_equal(np.concatenate(parts), whole)
    assert len(parts) < 40
    wrong = np.concatenate([*live_sound(io.BytesIO(raw), 2 * rate)])
    assert len(wrong) == len(whole) / 2


def test_mp3_without_a_tag_is_told_from_numbers() -> None:
    # MPEG 1 at 128 kbit/s and 44.1 kHz, padded; MPEG 2 at 64 kbit/s and 24 kHz.
    for head, size in ((b"\xff\xfb\x92\x00", 418), (b"\xff\xf3\x84\xc4", 192)):
        frame = head + bytes(size - 4)
        with pytest.raises(InvalidOption, match="standard input is mp3: convert it"):
            [*live_sound(io.BytesIO(3 * frame))]
        # The same bytes, and no second frame: numbers, none of which is lost.
        numbers = head + bytes(range(1, 251)) * 4
        [*parts] = live_sound(io.BytesIO(numbers))
        assert np.array_equal(
            np.concatenate(parts), np.frombuffer(numbers, "<i2").astype(np.float32) / 32768
        )
    assert mp3_frame(b"\xff\xff\x10\x00") == mp3_frame(b"\xff\xfb") == 0


# Other files, by packages.


@pytest.fixture
def no_packages(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("soundfile", "av"):
        monkeypatch.setitem(sys.modules, name, None)


@pytest.mark.usefixtures("no_packages")
@pytest.mark.parametrize(
    "content", [b"RIFF", b"ID3 and more", b"fLaC" * 9, b"RIFF\0\0\0\0AVI junk"]
)
def test_what_is_missing_is_named(content: bytes, tmp_path: Path) -> None:
    with pytest.raises(InvalidOption) as error:
        read(tmp_path / "a.wav", content)
    said = str(error.value)
    assert f"{tmp_path / 'a.wav'} cannot be read (it is no WAV file; soundfile is not" in said
    assert "pip install 'paceline[audio]'" in said
    assert "convert it to WAV" in said


@pytest.mark.usefixtures("no_packages")
def test_a_code_of_telephones_is_named(tmp_path: Path) -> None:
    with pytest.raises(InvalidOption, match="samples are in code 6; soundfile is not installed"):
        read(tmp_path / "a.wav", wav(form(6, 1, 1), chunk(b"data", b"abcd")))


class Library:
    """A stand-in for soundfile that gives some blocks and then fails, if it is told to."""

    def __init__(self, opens: bool, ends: bool) -> None:
        self.samplerate, self._opens, self._ends = 8_000, opens, ends

    def SoundFile(self, file: Any) -> Library:
        if not self._opens:
            raise RuntimeError("Format not recognised.")
        return self

    def blocks(self, size: int, dtype: str, always_2d: bool) -> Iterator[np.ndarray]:
        yield np.full((4000, 2), [0.5, 0.25], np.float32)
        if not self._ends:
            raise RuntimeError("bad frame")


def test_a_package_reads_the_others(
    given: Callable[[bytes], np.ndarray], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "av", None)
    monkeypatch.setitem(sys.modules, "soundfile", Library(True, True))
    for found in (read(tmp_path / "a.mp3", b"ID3 and more"), given(b"ID3 and more")):
        assert len(found) == 8000
        assert abs(found[4000] - 0.375) < 1e-4
    monkeypatch.setitem(sys.modules, "soundfile", Library(True, False))
    with pytest.raises(InvalidOption, match=r"a\.mp3 is damaged \(bad frame\)"):
        read(tmp_path / "a.mp3", b"ID3 and more")
    monkeypatch.setitem(sys.modules, "soundfile", Library(False, False))
    with pytest.raises(InvalidOption, match=r"soundfile says: Format not.*av is not installed"):
        read(tmp_path / "a.mp3", b"ID3 and more")


def spoken() -> np.ndarray:
    return 0.5 * np.cos(2 * np.pi * 440 * np.arange(48_000) / 48_000)


def is_spoken(found: np.ndarray, shift: int = 0) -> bool:
    # Whether it is the same tone, later by up to `shift` samples.
    wanted = spoken()[::3][4000:12000]
    parts = [found[at : at + 8000] for at in range(4000, 4001 + shift)]
    likeness = max(np.corrcoef(wanted, part)[0, 1] for part in parts)
    return abs(len(found) - RATE) < 2000 and likeness > 0.99


@pytest.mark.parametrize("kind", ["FLAC", "OGG", "MP3", "AIFF"])
def test_soundfile_reads_what_it_wrote(kind: str, tmp_path: Path) -> None:
    soundfile = pytest.importorskip("soundfile")
    path = tmp_path / "a.sound"
    soundfile.write(path, spoken(), 48_000, format=kind)
    found = read_sound(path)
    assert is_spoken(found)
    assert not is_spoken(-found)
    path.write_bytes(path.read_bytes()[:20])
    with pytest.raises(InvalidOption, match=r"a\.sound"):
        read_sound(path)


def test_a_picture_with_the_name_of_a_sound_is_refused(tmp_path: Path) -> None:
    pytest.importorskip("av")
    image = pytest.importorskip("PIL.Image")
    image.new("RGB", (8, 8)).save(tmp_path / "a.png")
    (tmp_path / "a.mp3").write_bytes((tmp_path / "a.png").read_bytes())
    (tmp_path / "b.mp3").write_bytes(b"no sound at all, and no picture" * 99)
    for name, why in (("a", "av says: it has no sound"), ("b", "av says: Invalid data found")):
        with pytest.raises(InvalidOption) as error:
            read_sound(tmp_path / f"{name}.mp3")
        said = str(error.value)
        assert why in said
        assert said.count(f"{name}.mp3") == 1
        assert "Errno" not in said


@pytest.mark.parametrize(("kind", "codec"), [("mp4", "aac"), ("webm", "libopus")])
def test_pyav_reads_what_it_wrote(kind: str, codec: str, tmp_path: Path) -> None:
    av = pytest.importorskip("av")
    pytest.importorskip("soundfile")
    path = tmp_path / "a.sound"
    with av.open(str(path), "w", format=kind) as container:
        stream = container.add_stream(codec, rate=48_000, layout="mono")
        planes = spoken().astype(np.float32)[None]
        frame = av.AudioFrame.from_ndarray(planes, format="fltp", layout="mono")
        frame.sample_rate = 48_000
        for packet in [*stream.encode(frame), *stream.encode(None)]:
            container.mux(packet)
    assert is_spoken(read_sound(path), shift=40)
