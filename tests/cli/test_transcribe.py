"""`paceline transcribe` on a tiny Whisper: one sound, many, and going on."""

from __future__ import annotations

import io
import json
import os
import shutil
import signal
import threading
import time
import wave
from collections.abc import Callable, Iterator
from dataclasses import asdict
from functools import partial
from importlib import import_module
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file
from tests.helpers.tiny_model import save_gguf, tiny_config
from tests.helpers.tiny_whisper import save_whisper

from paceline.audio import read, silence
from paceline.audio.mel import RATE
from paceline.cli import live_captions, output
from paceline.cli.app import run
from paceline.core.cache import open_lines
from paceline.errors import InvalidOption, ModelError
from paceline.listening import transcripts
from paceline.listening.windows import Listener, Transcription
from paceline.methods.careless.captions import CausalCaptions
from paceline.methods.conformer.encoder import ConformerShape, ReferenceConformer, load_conformer
from paceline.methods.conformer.stream import ConformerStream
from paceline.serving import logs, server

transcribe: Any = import_module("paceline.cli.transcribe")


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_whisper(tmp_path_factory.mktemp("whisper"))


@pytest.fixture(autouse=True)
def no_weights() -> Iterator[None]:
    """Noise is no speech, if somebody looks."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(silence, "silero_file", lambda: None)
        yield


@pytest.fixture
def command(model: Path, tmp_path: Path) -> list[str]:
    return ["transcribe", "--model", str(model), "--threads", "2", "--out", str(tmp_path / "out")]


def sound(path: Path, seed: int = 0, seconds: float = 1.0) -> str:
    samples = np.random.default_rng(seed).normal(size=round(seconds * RATE)) * 3000
    with wave.open(str(path), "wb") as file:
        file.setparams((1, 2, RATE, 0, "NONE", ""))
        file.writeframes(samples.astype("<i2").tobytes())
    return str(path)


@pytest.fixture
def after(monkeypatch: pytest.MonkeyPatch) -> Callable[[int, Callable[[], None]], None]:
    """Do something as a window is told, counted from one."""

    def plan(windows: int, act: Callable[[], None]) -> None:
        whole, count = Listener.windows, 0

        def some(*args: Any) -> Iterator[Any]:
            nonlocal count
            for each in whole(*args):
                count += 1
                if count == windows:
                    act()
                yield each

        monkeypatch.setattr(Listener, "windows", some)

    return plan


def test_each_format_says_the_same(
    command: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path, out = sound(tmp_path / "talk.wav"), tmp_path / "out"
    for form, end in (("text", "txt"), ("srt", "srt"), ("vtt", "vtt"), ("json", "jsonl")):
        assert run([*command[:-2], path, "--format", form]) == 0
        printed = capsys.readouterr().out
        assert run([*command, path, "--format", form]) == 0
        assert (out / f"talk.{end}").read_text() == printed
        assert "1 of 1 written down, 0 with an error, 0 before; 1 s of" in capsys.readouterr().err
    lines = [json.loads(line) for line in (out / "talk.jsonl").read_text().splitlines()]
    assert "\n".join(line["text"] for line in lines) == (out / "talk.txt").read_text().strip()
    assert sorted(each.name for each in out.iterdir()) == [
        f"talk.{end}" for end in ("jsonl", "srt", "txt", "vtt")
    ]


def test_a_bad_file_does_not_lose_the_others(
    command: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    files = [sound(tmp_path / f"{n}.wav", n) for n in range(3)]
    (tmp_path / "1.wav").write_bytes(b"RIFF")
    assert run([*command, *files]) == 1
    said = capsys.readouterr().err
    assert f"error: {tmp_path / '1.wav'} cannot be read" in said
    assert "2 of 3 written down, 1 with an error, 0 before" in said
    assert sorted(each.name for each in (tmp_path / "out").iterdir()) == ["0.txt", "2.txt"]
    # What is there is kept, and the model is not even loaded.
    (tmp_path / "out" / "0.txt").write_text("mine")
    assert run([*command, *files]) == 1
    assert "0 of 1 written down, 1 with an error, 2 before" in capsys.readouterr().err
    assert (tmp_path / "out" / "0.txt").read_text() == "mine"
    sound(tmp_path / "1.wav", 1)
    assert run([*command, *files]) == 0
    assert run([*command[:1], files[1], "--model", "none", *command[3:]]) == 0


def test_names_reach_the_terminal_as_one_line(
    command: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any
) -> None:
    """Those of files that are cut short or bad, with codes of terminals and of markup in them."""
    name, clean = "\x1b]0;x\nred[b]", r"\x1b]0;x red[b]"
    short, bad = sound(tmp_path / f"{name}.wav"), tmp_path / f"{name} bad.wav"
    Path(short).write_bytes(Path(short).read_bytes()[:-100])
    bad.write_bytes(b"RIFF")
    with monkeypatch.context() as patch:
        patch.setattr("sys.stderr.isatty", lambda: True)
        patch.setenv("COLUMNS", "200")
        assert run([*command, short, str(bad)]) == 1
    shown = capsys.readouterr().err
    assert "\x1b]0" not in shown
    for said in (".wav is cut short: 100 bytes of", " bad.wav cannot be read", ".wav \x1b["):
        assert clean + said in shown
    for path, code, said in ((short, 0, ".wav is cut short"), (str(bad), 2, " bad.wav cannot be")):
        assert run([*command[:-2], path]) == code
        [line] = capsys.readouterr().err.splitlines()
        assert clean + said in line


@pytest.mark.parametrize("how", ["Ctrl-C", "error"])
def test_the_same_command_goes_on(
    command: list[str],
    tmp_path: Path,
    after: Callable[[int, Callable[[], None]], None],
    how: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    path, out = sound(tmp_path / "talk.wav", seconds=64), tmp_path / "out"
    assert run([*command[:-1], str(tmp_path / "whole"), path]) == 0
    whole = (tmp_path / "whole" / "talk.txt").read_text()

    def act() -> None:
        if how == "Ctrl-C":
            signal.raise_signal(signal.SIGINT)
        else:
            raise MemoryError

    after(*((2, act) if how == "Ctrl-C" else (3, act)))
    assert run([*command, path]) == (130 if how == "Ctrl-C" else 2)
    monkeypatch.undo()
    part = out / "talk.txt.part"
    assert len(part.read_text().splitlines()) == 3
    with part.open("a") as file:
        file.write('{"heard": 99')  # a line that was not finished
    heard, kept = [], Listener.windows

    def watched(own: Listener, transcript: Transcription) -> Any:
        heard.append(transcript.at)
        return kept(own, transcript)

    monkeypatch.setattr(Listener, "windows", watched)
    assert run([*command, path]) == 0
    assert heard[0] > 0
    assert (out / "talk.txt").read_text() == whole
    assert not part.exists()


@pytest.mark.parametrize("kind", ["stdin", "fifo"])
def test_ctrl_c_does_not_wait_for_a_sound_that_comes(
    command: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any, kind: str
) -> None:
    first, ended = sound(tmp_path / "talk.wav"), threading.Event()
    if kind == "fifo":
        os.mkfifo(second := str(tmp_path / "more.wav"))
        reading = os.open(second, os.O_RDWR)  # there is always a writer
        writing = os.dup(reading)
    else:
        second = "-"
        reading, writing = os.pipe()
        monkeypatch.setattr("sys.stdin", os.fdopen(os.dup(reading)))
    os.write(writing, Path(first).read_bytes()[:-1000])
    late = []
    kept = read.read_sound

    def press() -> None:
        signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGINT)
        if not ended.wait(10):
            late.append(second)
            os.close(reading)
            os.close(writing)

    def watched(file: Path) -> np.ndarray:
        if str(file) == second:
            threading.Timer(0.2, press).start()
        return kept(file)

    monkeypatch.setattr(read, "read_sound", watched)
    assert run([*command, first, second]) == 130
    ended.set()
    assert not late
    said = capsys.readouterr().err
    assert "1 of 2 written down, 0 with an error, 0 before" in said
    assert "the same command goes on" in said
    assert [each.name for each in (tmp_path / "out").iterdir()] == ["talk.txt"]
    os.write(writing, Path(first).read_bytes()[-1000:])  # nobody may wait for it any more


def test_ctrl_c_is_not_the_end_of_a_sound(
    command: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any
) -> None:
    kept = read.read_sound

    def like_a_library(file: Path) -> np.ndarray:  # in C, which takes it for the end of the file
        try:
            signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGINT)
            time.sleep(0.3)
        except KeyboardInterrupt:
            pass
        return kept(file)[: RATE // 2]

    monkeypatch.setattr(read, "read_sound", like_a_library)
    assert run([*command[:-2], sound(tmp_path / "talk.wav")]) == 130
    assert capsys.readouterr().out == ""


def test_what_is_of_something_else_is_left_as_it_is(
    command: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path, out = sound(tmp_path / "talk.wav"), tmp_path / "out"
    part = out / "talk.txt.part"
    out.mkdir()
    for content in (
        '{"sound": "another"}\n',
        "[1, 2]\n3\n",
        "notes of mine\n",
        '{}\n{"heard": 1}\n',
    ):
        part.write_text(content)
        assert run([*command, path]) == 2
        assert "talk.txt.part" in capsys.readouterr().err
        assert part.read_text() == content
    part.unlink()
    file, _ = open_lines(part, lambda lines: lines)
    assert run([*command, path]) == 2
    assert "another run" in capsys.readouterr().err
    file.close()
    part.unlink()
    assert run([*command, path]) == 0


@pytest.mark.parametrize(
    "line",
    [
        '{"heard": -5, "captions": []}',
        '{"heard": 0, "captions": []}',
        '{"heard": 16001, "captions": []}',
        '{"heard": 1e999, "captions": []}',
        '{"heard": 1000.5, "captions": []}',
        '{"heard": true, "captions": []}',
        '{"heard": 9000, "captions": []}\n{"heard": 9000, "captions": []}',
        *(
            f'{{"heard": 9000, "captions": [[{each}]]}}'
            for each in (
                '"a", "b", 3',
                "0.0, 0.5, 3",
                '0.0, 1e999, "a"',
                'NaN, 0.5, "a"',
                '-1.0, 0.5, "a"',
                '0.5, 0.2, "a"',
                '0.0, 2.0, "a"',
                'false, 0.5, "a"',
                '0.0, 0.5, "\\ud800"',
                "0.0, 0.5",
            )
        ),
        "[" * 100_000,
    ],
)
def test_a_damaged_part_is_told_and_left(
    command: list[str],
    tmp_path: Path,
    after: Callable[[int, Callable[[], None]], None],
    line: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """In its windows, behind a line that says of what it is; and in that line itself."""
    path, part = sound(tmp_path / "talk.wav"), tmp_path / "out" / "talk.txt.part"

    def act() -> None:
        raise MemoryError

    after(1, act)
    assert run([*command, path]) == 2
    monkeypatch.undo()
    [about] = part.read_text().splitlines()
    for content in (f"{about}\n{line}\n", f"{line}\n", "null\n"):
        part.write_text(content)
        assert run([*command, path]) == 2
        said = capsys.readouterr().err
        assert "talk.txt.part" in said
        assert "delete it" in said
        assert part.read_text() == content
        assert not (tmp_path / "out" / "talk.txt").exists()


def test_what_another_run_writes_down_meanwhile_is_kept(
    command: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any
) -> None:
    files, out = [sound(tmp_path / f"{n}.wav", n) for n in range(2)], tmp_path / "out"
    kept = read.read_sound

    def slow(file: Path) -> np.ndarray:
        monkeypatch.setattr(read, "read_sound", kept)
        assert run([*command, files[0]]) == 0
        (out / "0.txt").write_text("theirs")
        capsys.readouterr()
        return kept(file)

    monkeypatch.setattr(read, "read_sound", slow)
    assert run([*command, *files]) == 0
    assert "1 of 1 written down, 0 with an error, 1 before; 1 s of" in capsys.readouterr().err
    assert (out / "0.txt").read_text() == "theirs"
    assert sorted(each.name for each in out.iterdir()) == ["0.txt", "1.txt"]


def test_a_full_disk_loses_nothing(
    command: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any
) -> None:
    def full(*_: Any) -> None:
        raise OSError(28, "No space left on device")

    path = sound(tmp_path / "talk.wav")
    for name in ("append", "write_atomically"):
        with monkeypatch.context() as patch:
            patch.setattr(transcripts, name, full)
            assert run([*command, path]) == 2
        assert "talk.txt cannot be written (No space" in capsys.readouterr().err
    assert run([*command, path]) == 0


def test_what_cannot_be_done_is_refused(
    command: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = sound(tmp_path / "talk.wav")
    (tmp_path / "talk.flac").write_bytes(b"")
    (tmp_path / "folder" / "talk.txt").mkdir(parents=True)
    cases = {
        "several files are several transcripts": [*command[:-2], path, path],
        "would both be": [*command, path, str(tmp_path / "talk.flac")],
        "is no folder for transcripts": [*command[:-1], path, path],
        "folder/talk.txt is no file: rename it": [*command[:-1], str(tmp_path / "folder"), path],
        "--format doc is unknown": [*command, path, "--format", "doc"],
        "hears English alone": [*command, path, "--language", "xx"],
        "--rate needs --live": [*command, path, "--rate", "16000"],
        "is empty": [*command, str(tmp_path / "talk.flac")],
    }
    for said, asked in cases.items():
        assert run(asked) == 2
        assert said in capsys.readouterr().err
    tiny = save_gguf(tmp_path / "tiny.gguf", tiny_config())
    assert run([*command, path, "--model", str(tiny)]) == 2
    assert "hears nothing" in capsys.readouterr().err


def test_a_language_in_capitals_or_empty_is_understood(
    command: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any
) -> None:
    path = sound(tmp_path / "talk.wav")
    assert run([*command[:-2], path]) == 0
    plain = capsys.readouterr().out
    for code in ("en", "EN", ""):
        assert run([*command[:-2], path, "--language", code]) == 0
        assert capsys.readouterr().out == plain
    for code in ("EN", ""):
        assert lived(command, monkeypatch, raw(0.5), "--language", code) == 0


def edited(**changes: Any) -> Callable[[Path], object]:
    """What gives a model another config."""

    def change(model: Path) -> None:
        config = json.loads((model / "config.json").read_text())
        (model / "config.json").write_text(json.dumps(config | changes))

    return change


def cut(name: str, to: int) -> Callable[[Path], object]:
    return lambda model: (model / name).write_bytes((model / name).read_bytes()[:to])


@pytest.mark.parametrize(
    ("damage", "said"),
    [
        *((cut(name, to), name) for name in ("config.json", "tokenizer.json") for to in (0, 99)),
        (cut("model.safetensors", 0), "model.safetensors"),
        (cut("model.safetensors", -20), "cut short"),
        *((edited(**{name: value}), f"{name} is {value}")
          for name in ("d_model", "decoder_layers", "encoder_layers", "num_mel_bins")
          for value in (0, -1, 2.5)),
        (edited(max_source_positions=3000), "encoder.positions of 1500 x 64 numbers"),
        (edited(max_target_positions=64), "positions of 32 x 64 numbers"),
        (edited(num_mel_bins=128), "encoder.conv1 of 64 x 80 x 3 numbers"),
        (edited(encoder_layers=2), "encoder.layers.1"),
        (edited(decoder_layers=2), "layers.1"),
        (edited(suppress_tokens=[99]), "suppress_tokens"),
    ],
)  # fmt: skip
def test_a_damaged_model_is_one_line(
    model: Path, tmp_path: Path, damage: Callable[[Path], object], said: str, capsys: Any
) -> None:
    shutil.copytree(model, tmp_path / "own")
    damage(tmp_path / "own")
    path = sound(tmp_path / "a.wav")
    assert run(["transcribe", path, "--model", str(tmp_path / "own"), "--threads", "1"]) == 2
    [line] = capsys.readouterr().err.strip().splitlines()
    assert said in line
    assert line.startswith("paceline: error: ")


def test_a_layer_that_the_config_leaves_out_is_named(
    model: Path, tmp_path: Path, capsys: Any
) -> None:
    whole = load_file(model / "model.safetensors")
    for side in ("encoder", "decoder"):
        shutil.copytree(model, tmp_path / side)
        first, second = (f"model.{side}.layers.{number}." for number in (0, 1))
        more = {name.replace(first, second): each for name, each in whole.items() if first in name}
        save_file(whole | more, tmp_path / side / "model.safetensors")
        path = sound(tmp_path / "a.wav")
        assert run(["transcribe", path, "--model", str(tmp_path / side)]) == 2
        assert f"{second}self_attn_layer_norm.weight, of a layer" in capsys.readouterr().err


def test_standard_input_has_a_name(
    command: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    content = Path(sound(tmp_path / "talk.wav")).read_bytes()
    assert run([*command, str(tmp_path / "talk.wav")]) == 0
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(content)))
    assert run([*command, "-"]) == 0
    out = tmp_path / "out"
    assert (out / "stdin.txt").read_text() == (out / "talk.txt").read_text()


def test_standard_input_without_an_end_is_told_of_live(
    command: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any
) -> None:
    """Where it takes its time, before its end; and where it is too long, as the command ends."""
    content = Path(sound(tmp_path / "talk.wav")).read_bytes()
    theirs, ours = os.pipe()

    def come() -> None:
        os.write(ours, content[:40] + b"\xff" * 4 + content[44:])  # of a writer that knew no size
        told.wait(30)
        os.close(ours)

    told, remarks = threading.Event(), list[str]()
    monkeypatch.setattr(output, "remark", lambda text: (remarks.append(text), told.set()))
    monkeypatch.setattr(transcribe, "_LATE", 0.05)
    with os.fdopen(theirs) as stream, monkeypatch.context() as patch:
        patch.setattr("sys.stdin", stream)
        coming = threading.Thread(target=come)
        coming.start()
        assert run([*command[:-2], "-"]) == 0
        coming.join()
    assert remarks[0].endswith("for sound that goes on and on give --live")
    printed = capsys.readouterr().out
    assert run([*command[:-2], str(tmp_path / "talk.wav")]) == 0
    assert capsys.readouterr().out == printed != ""
    monkeypatch.setattr(read, "read_sound", partial(read.read_sound, longest=0.5))
    for more in ([], command[-2:]):
        monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(content)))
        assert run([*command[:-2], "-", *more]) == 2
        [line] = capsys.readouterr().err.splitlines()[:1]
        assert "lasts more than 0.5 s: give it in parts, or give --live" in line
    assert run([*command, str(tmp_path / "talk.wav")]) == 2
    assert "--live" not in capsys.readouterr().err


def finder_file(path: Path, bias: float) -> Path:
    """Weights of Silero VAD, all zero but for the last bias."""
    shapes: dict[str, tuple[int, ...]] = dict(silence._SHAPES)
    shapes |= {
        each.replace("weight", "bias"): shape[:1]
        for each, shape in silence._SHAPES.items()
        if not each.startswith("stft")
    }
    tensors = {each: np.zeros(shape, np.float32) for each, shape in shapes.items()}
    tensors["final_conv.bias"][:] = bias
    save_file(tensors, path)
    return path


def test_silence_is_skipped(command: list[str], tmp_path: Path, capsys: Any) -> None:
    # Speech, to this network, is all whose bias says so; what is loud makes it sure of none.
    path, files = sound(tmp_path / "talk.wav"), {}
    for name, bias in (("never", -50.0), ("always", 50.0)):
        files[name] = finder_file(tmp_path / f"{name}.safetensors", bias)
    said = []
    for asked in (["--no-silence"], *(["--silence", str(each)] for each in files.values())):
        assert run([*command[:-2], path, *asked]) == 0
        said.append(capsys.readouterr().out)
    assert said[0] == said[2] != ""
    assert said[1] == ""
    assert run([*command, path, "--silence", str(files["never"])]) == 0
    assert (tmp_path / "out" / "talk.txt").read_text() == ""
    assert run([*command, path, "--silence", str(files["never"]), "--no-silence"]) == 2
    assert "contradict" in capsys.readouterr().err
    (tmp_path / "out" / "talk.txt").unlink()
    assert run([*command, path, "--silence", path]) == 2
    for other in (tmp_path / "nowhere", tmp_path):
        capsys.readouterr()
        assert run([*command, path, "--silence", str(other)]) == 2
        assert f"{other} is no file: give --silence silero_vad" in capsys.readouterr().err


def raw(seconds: float, seed: int = 0) -> bytes:
    samples = np.random.default_rng(seed).normal(size=round(seconds * RATE)) * 3000
    whole: bytes = samples.astype("<i2").tobytes()
    return whole


def headed(content: bytes, rate: int = RATE) -> bytes:
    with wave.open(file := io.BytesIO(), "wb") as out:
        out.setparams((1, 2, rate, 0, "NONE", ""))
        out.writeframes(content)
    return file.getvalue()


class AtOnce:
    """A thread that is over when it has begun."""

    def __init__(self, target: Callable[..., None], args: tuple[Any, ...], daemon: bool) -> None:
        self.start = lambda: target(*args)


def lived(command: list[str], monkeypatch: pytest.MonkeyPatch, content: bytes, *more: str) -> int:
    """The exit code of live captions of some bytes, all of which are there before the first."""
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(content)))
    if content:  # captions are a function of what has come when they begin
        monkeypatch.setattr(live_captions, "threading", SimpleNamespace(Thread=AtOnce))
    return run([*command[:-2], "-", "--live", "--no-silence", *more])


def test_live_captions_are_those_of_raw_numbers_and_of_a_stream(
    command: list[str], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert lived(command, monkeypatch, raw(2.5)) == 0
    plain, said = capsys.readouterr()
    assert plain.split()
    assert "2 s of sound, at most 0.0 s behind" in said
    assert lived(command, monkeypatch, headed(raw(2.5))) == 0
    assert capsys.readouterr().out == plain
    assert lived(command, monkeypatch, raw(2.5), "--format", "json") == 0
    lines = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert " ".join(line["final"] for line in lines).split() == plain.split()
    assert {*lines[0]} == {"final", "draft", "lag"}
    # At another rate the same numbers last half as long.
    assert lived(command, monkeypatch, raw(2.5), "--rate", "32000") == 0
    assert "1 s of sound" in capsys.readouterr().err


def adapter(path: Path, width: int = 64) -> str:
    """A LoRA adapter of what an encoder asks, for a Whisper of that width."""
    path.mkdir()
    rng = np.random.default_rng(9)
    name = "base_model.model.model.encoder.layers.0.self_attn.q_proj.lora_"
    shapes = {"A": (2, width), "B": (width, 2)}
    tensors = {
        f"{name}{part}.weight": rng.normal(size=shape).astype(np.float32)
        for part, shape in shapes.items()
    }
    save_file(tensors, path / "adapter_model.safetensors")
    about = {"peft_type": "LORA", "r": 2, "lora_alpha": 2}
    (path / "adapter_config.json").write_text(json.dumps(about))
    return str(path)


def test_live_captions_by_a_method(
    command: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any
) -> None:
    own, other = adapter(tmp_path / "own"), adapter(tmp_path / "other", 32)
    by = ("--live-by", "careless-whisper", "--language", "en")
    assert lived(command, monkeypatch, raw(2.5), *by, "--adapter", own) == 0
    plain, said = capsys.readouterr()
    assert plain.split()
    assert "2 s of sound" in said
    for more, why in (
        ((*by[:2], "--adapter", own), "careless-whisper needs --language"),
        (by, "needs its adapter: make one of this model by paceline train causal"),
        ((*by, "--adapter", other), "give the model that it was trained on"),
        ((*by, "--adapter", own, "--translate"), "leave out --silence and --translate"),
        (("--live-by", "streaminnc", "--language", "en"), "streaminnc hears with no Whisper"),
        (("--live-by", "none", "--language", "en"), "stream 'none' is unknown"),
        ((*by[:3], "xx", "--adapter", own), "hears English alone"),
    ):
        assert lived(command, monkeypatch, raw(2.5), *more) == 2
        assert why in capsys.readouterr().err


def test_live_captions_by_a_conformer(
    command: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any
) -> None:
    shape, rng = ConformerShape(width=64, layers=1, heads=2, ffn=96), np.random.default_rng(1)
    tensors = {
        name: (rng.normal(size=size) * 0.2 + ("norm" in name)).astype(np.float32)
        for name, size in shape.tensors().items()
    }
    told = {name: str(each) for name, each in asdict(shape).items()}
    save_file(tensors, tmp_path / "own.safetensors", told)
    plain, by = [command[0], *command[3:]], ["--live-by", "cache-aware-conformer"]
    own = ["--model", str(tmp_path / "own.safetensors")]
    assert lived(plain, monkeypatch, raw(2.5), *by, *own) == 0
    out, said = capsys.readouterr()
    stream = ConformerStream(ReferenceConformer(*load_conformer(Path(own[1]))), 14)
    stream.push(np.frombuffer(raw(2.5), "<i2").astype(np.float32) / 32768)
    stream.end()
    assert out.split() == stream.text.split() != []
    assert "2 s of sound" in said
    for more, why in (
        ([*own, "--language", "en"], "takes its weights as --model, and --threads"),
        ([*own, "--runtime", "reference"], "takes its weights as --model, and --threads"),
        (command[1:3], "is no conformer: train one by paceline train conformer"),
        (["--model", "nowhere.safetensors"], "nowhere.safetensors"),
        ([], "smollm2-135m"),
    ):
        assert lived(plain, monkeypatch, raw(2.5), *by, *more) == 2
        assert why in capsys.readouterr().err


def test_a_fault_in_live_sound_loses_nothing_before_it(
    command: list[str], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert lived(command, monkeypatch, raw(2.5)) == 0
    plain = capsys.readouterr().out
    whole = read.live_sound

    def broken(*given: Any) -> Iterator[np.ndarray]:
        yield from whole(*given)
        raise InvalidOption("the cable is out")

    monkeypatch.setattr(read, "live_sound", broken)
    assert lived(command, monkeypatch, raw(2.5)) == 2
    out, said = capsys.readouterr()
    assert out == plain != ""
    assert "the cable is out" in said
    monkeypatch.setattr("sys.stdin", None)
    assert run([*command[:-2], "-", "--live"]) == 2
    assert "standard input is closed" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("content", "more", "said"),
    [
        (b"", (), "no samples"),
        (headed(bytes(4000), rate=1), (), "1 samples a second"),
        (headed(bytes(4000), rate=900_000), (), "900000 samples a second"),
        (b"OggS" + bytes(1000), (), "standard input is ogg: convert it"),
        (b"RIFF0000WAVEfmt ", (), "no samples"),
        (raw(1.0), ("--format", "srt"), "srt needs times"),
        (raw(1.0), ("--out", "x"), "give - alone"),
        (raw(1.0), ("--rate", "10"), "rate"),
    ],
)
def test_what_live_captions_cannot_be_made_of_is_one_line(
    command: list[str],
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    content: bytes,
    more: tuple[str, ...],
    said: str,
) -> None:
    assert lived(command, monkeypatch, content, *more) == 2
    assert said in capsys.readouterr().err


def test_a_terminal_shows_what_may_change(
    command: list[str], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(live_captions, "_where", lambda: "text")
    assert lived(command, monkeypatch, raw(3.0)) == 0
    plain = capsys.readouterr().out.split()
    monkeypatch.setattr(live_captions, "_where", lambda: "terminal")
    monkeypatch.setenv("COLUMNS", "40")
    assert lived(command, monkeypatch, raw(3.0)) == 0
    shown = capsys.readouterr().out
    assert "s behind)" in shown
    # What a terminal has at the end: what stands behind the last return of each line.
    lines = [line.rpartition("\x1b[2K")[2] for line in shown.split("\n")]
    assert " ".join(lines).split() == plain
    assert all(len(line) < 40 for line in lines)


def test_a_server_hears_with_the_network_that_it_is_given(
    model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any
) -> None:
    loads: list[Any] = []
    monkeypatch.setattr(server, "serve", lambda settings, keys, load: loads.append(load))
    monkeypatch.setattr(logs, "set_up", lambda text: None)
    weights = finder_file(tmp_path / "a.safetensors", 0.0)

    def finder(*more: str) -> Any:
        assert run(["serve", "--model", str(model), "--threads", "2", *more]) == 0
        return loads[-1]().finder

    assert finder() is None  # no package is installed
    assert finder("--silence", str(weights)) is not None
    monkeypatch.setattr(silence, "silero_file", lambda: weights)
    assert finder() is not None
    assert finder("--silence", "none") is None
    with pytest.raises(ModelError, match="nowhere"):
        finder("--silence", str(tmp_path / "nowhere"))


def test_a_server_takes_the_same_method_as_the_command(
    model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any
) -> None:
    loads: list[Any] = []
    monkeypatch.setattr(server, "serve", lambda settings, keys, load, *_: loads.append(load))
    monkeypatch.setattr(logs, "set_up", lambda text: None)
    own, other = adapter(tmp_path / "own"), adapter(tmp_path / "other", 32)
    asked = ["serve", "--model", str(model), "--threads", "2"]
    by = ("--live-by", "careless-whisper")
    assert run(asked) == 0
    assert loads.pop()().live_by is None
    assert run([*asked, *by, "--adapter", own]) == 0
    assert loads.pop()().live_by == CausalCaptions.live
    assert run([*asked, *by, "--adapter", other]) == 0
    with pytest.raises(ModelError, match="give the model that it was trained on"):
        loads.pop()()
    for more, why in (
        (by, "needs its adapter"),
        (("--live-by", "cache-aware-conformer"), "hears with no Whisper: use careless-whisper"),
        (("--live-by", "none"), "stream 'none' is unknown"),
    ):
        assert run([*asked, *more]) == 2
        assert why in capsys.readouterr().err


def test_ctrl_c_ends_the_sound(
    command: list[str], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def endless(*_: Any) -> Iterator[np.ndarray]:
        sound = np.frombuffer(raw(1.5), "<i2").astype(np.float32) / 32768
        yield sound
        signal.raise_signal(signal.SIGINT)
        while True:
            time.sleep(0.01)
            yield sound[:0]

    monkeypatch.setattr(read, "live_sound", endless)
    assert lived(command, monkeypatch, b"") == 130
    out, said = capsys.readouterr()
    assert out.split()
    assert "of sound" in said
