"""Where speech is: the network beside PyTorch, exact sums, and the published weights."""

from __future__ import annotations

import hashlib
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import save_file
from tests.helpers.tiny_whisper import LoudFinder
from torch.nn import functional

from paceline.audio import silence
from paceline.audio.silence import (
    CHUNK,
    SpeechFinder,
    SpokenSound,
    begin_of_speech,
    silero_file,
)
from paceline.errors import ModelError

WHOLE: dict[str, tuple[int, ...]] = {}
for weight, shape in silence._SHAPES.items():
    WHOLE[weight] = shape
    if not weight.startswith("stft"):
        WHOLE[weight.replace("weight", "bias")] = shape[:1]


@pytest.fixture(scope="module")
def tensors() -> dict[str, torch.Tensor]:
    torch.manual_seed(2)
    return {
        name: torch.randn(shape) * (0.1 if "bias" in name else 2 / np.sqrt(np.prod(shape[1:])))
        for name, shape in WHOLE.items()
    }


@pytest.fixture(scope="module")
def path(tensors: dict[str, torch.Tensor], tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("silero") / "some.safetensors"
    save_file(tensors, path)
    return path


def noise(count: int, seed: int = 0) -> np.ndarray:
    rng = np.random.default_rng(seed)
    loud = np.repeat(rng.uniform(0, 0.5, -(-count // 4000)), 4000)[:count]
    return (rng.normal(size=count) * loud).astype(np.float32)


def theirs(tensors: dict[str, Any], sound: np.ndarray) -> np.ndarray:
    cell = torch.nn.LSTMCell(128, 128)
    cell.load_state_dict({n[10:]: each for n, each in tensors.items() if n.startswith("lstm")})
    padded, state, out = np.pad(sound, (64, -len(sound) % CHUNK)), None, []
    with torch.no_grad():
        for at in range(0, len(padded) - 64, CHUNK):
            chunk = torch.tensor(padded[None, None, at : at + 64 + CHUNK])
            x = functional.pad(chunk, (0, 64), "reflect")
            x = functional.conv1d(x, tensors["stft_conv.weight"], stride=128)
            x = (x[:, :129] ** 2 + x[:, 129:] ** 2).sqrt()
            for i, stride in enumerate((1, 2, 2, 1), 1):
                weight, bias = tensors[f"conv{i}.weight"], tensors[f"conv{i}.bias"]
                x = functional.conv1d(x, weight, bias, stride, 1).relu()
            state = cell(x[..., 0], state)
            x = functional.conv1d(
                state[0][..., None].relu(), tensors["final_conv.weight"], tensors["final_conv.bias"]
            )
            out.append(float(torch.sigmoid(x)))
    return np.array(out)


def test_probabilities_are_those_of_pytorch(path: Path, tensors: dict[str, torch.Tensor]) -> None:
    sound = noise(40_000)
    found, wanted = SpeechFinder(path).probabilities(sound), theirs(tensors, sound)
    assert wanted.std() > 0.05
    assert np.abs(found - wanted).max() < 2e-5
    assert np.abs(found - theirs(tensors, noise(40_000, 1))).max() > 0.1


def test_where_pieces_end_does_not_matter(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    finder, sound = SpeechFinder(path), noise(20_000)
    whole = finder.probabilities(sound)
    monkeypatch.setattr(silence, "_PIECE", 7)
    assert np.array_equal(finder.probabilities(sound), whole)
    # A sound is silent behind its end, and what comes later changes nothing before.
    assert np.array_equal(finder.probabilities(np.pad(sound, (0, 5000)))[: len(whole)], whole)
    assert len(finder.probabilities(sound[:0])) == 0


def test_sums_are_not_rounded(path: Path, tensors: dict[str, torch.Tensor]) -> None:
    finder = SpeechFinder(path)
    rng = np.random.default_rng(4)
    for name, table in finder._tables.items():
        rows = rng.normal(size=(3, len(table._whole)))
        _, size = np.frexp(np.abs(rows).max(axis=1, keepdims=True))
        cut = np.rint(np.ldexp(rows, 22 - size))
        exact = cut.astype(np.int64) @ table._whole.astype(np.int64)
        assert np.array_equal(cut @ table._whole, exact), name
        assert np.abs(np.abs(cut) @ np.abs(table._whole)).max() < 2**53
        order = rng.permutation(len(table._whole))
        assert np.array_equal(cut[:, order] @ table._whole[order], exact)


def test_bits_are_the_same_everywhere(tmp_path: Path) -> None:
    # Weights and sound of whole numbers, which no library draws differently.
    def numbers(count: int, seed: int) -> np.ndarray:
        return ((np.arange(count, dtype=np.int64) * 7919 + seed) * 104729 % 2003 - 1001) / 2003

    made = {
        name: torch.tensor(
            (numbers(int(np.prod(shape)), seed) / (1 if "lstm" in name else 3)).reshape(shape)
        ).float()
        for seed, (name, shape) in enumerate(WHOLE.items())
    }
    save_file(made, tmp_path / "a.safetensors")
    found = SpeechFinder(tmp_path / "a.safetensors").probabilities(
        numbers(9000, 77).astype(np.float32)
    )
    assert found.std() > 1e-3
    assert hashlib.sha256(found.tobytes()).hexdigest()[:16] == "d558c3fd8b16cf7a"


def test_speech_goes_on_where_it_is_less_sure(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    finder, said = SpeechFinder(path), np.array([0.4, 0.5, 0.4, 0.36, 0.3, 0.4, 0.9, 0.1])
    monkeypatch.setattr(silence.SpeechStream, "probabilities", lambda own, sound: said)
    found = finder.stream().feed(np.zeros(8 * CHUNK, np.float32))
    assert found.tolist() == [False, True, True, True, False, False, True, False]


def test_a_sound_in_pieces_has_the_speech_of_the_whole(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(silence, "_LESS", 0.01)
    finder, sound = SpeechFinder(path), noise(20_000)
    sure = float(np.median(finder.probabilities(sound)))
    whole = finder.stream(sure).feed(sound)
    assert 0 < whole.sum() < len(whole) == 20_000 // CHUNK
    assert finder.stream(sure + 0.1).feed(sound).sum() < whole.sum()
    rng = np.random.default_rng(3)
    for most in (1, 7, CHUNK - 1, CHUNK + 1, 3000):
        stream, found, at = finder.stream(sure), list[np.ndarray](), 0
        while at < len(sound):
            at += (size := int(rng.integers(0, most + 1)))
            found.append(stream.feed(sound[at - size : at]))
        assert np.array_equal(np.concatenate(found), whole)


def test_speech_is_looked_for_as_far_as_is_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(silence, "_LOOK", 4 * CHUNK)
    sound = np.zeros(100 * CHUNK - 5, np.float32)
    sound[30 * CHUNK : 33 * CHUNK] = sound[-1000:] = 0.5
    whole = np.abs(np.pad(sound, (0, 5)).reshape(-1, CHUNK)).max(axis=1) > 0
    for ask in ([0], [0, 40 * CHUNK], [50 * CHUNK, 0], [31 * CHUNK + 7, 99 * CHUNK]):
        stream = LoudFinder().stream()
        heard, feed = list[int](), stream.feed
        stream.feed = lambda more, heard=heard, feed=feed: heard.append(len(more)) or feed(more)
        found = SpokenSound(stream, np.pad(sound, (0, 5)))
        for at in ask:
            assert found.begin(at) == begin_of_speech(whole, at)
        assert sum(heard) == (32 if ask == [0] else 100) * CHUNK
    quiet = SpokenSound(LoudFinder().stream(), sound[: 10 * CHUNK])
    assert quiet.begin(0) is quiet.begin(0) is None


def test_speech_is_heard_from_a_little_before_it_on() -> None:
    speech = np.zeros(100, np.bool_)
    assert begin_of_speech(speech, 0) is None
    speech[[40, 41, 60]] = True
    for at in (0, 5000, 17_280):
        assert begin_of_speech(speech, at) == 40 * CHUNK - 3200
    assert begin_of_speech(speech, 18_000) == 18_000
    assert begin_of_speech(speech, 20_000) == 20_000
    assert begin_of_speech(speech, 22_000) == 60 * CHUNK - 3200
    assert begin_of_speech(speech, 31_500) is None
    speech[0] = True
    assert begin_of_speech(speech, 0) == 0


@pytest.mark.parametrize("name", ["conv2.weight", "conv3.bias", "lstm_cell.bias_hh", "other"])
def test_other_files_are_refused(
    name: str, tensors: dict[str, torch.Tensor], tmp_path: Path
) -> None:
    path = tmp_path / "a.safetensors"
    for changed in ({}, {name: torch.zeros(3, 3)}):
        kept = {each: values for each, values in tensors.items() if each != name}
        if name == "other":
            kept = {"other": torch.zeros(2)}
        save_file(kept | changed, path)
        said = "of Silero VAD for 16 kHz: give silero_vad_16k.safetensors"
        with pytest.raises(ModelError, match=rf"{re.escape(str(path))} has no .*{said}"):
            SpeechFinder(path)
    path.write_bytes(b"junk")
    with pytest.raises(ModelError, match=re.escape(str(path))):
        SpeechFinder(path)


def test_the_package_is_found_and_not_imported(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    own = tmp_path / "silero_vad"
    own.mkdir()
    (own / "__init__.py").write_text("raise SystemExit\n")
    monkeypatch.syspath_prepend(tmp_path)
    assert silero_file() is None
    (own / "data").mkdir()
    (own / "data" / "silero_vad_16k.safetensors").write_bytes(b"")
    assert silero_file() == own / "data" / "silero_vad_16k.safetensors"
    (own / "__init__.py").unlink()
    (own / "data" / "silero_vad_16k.safetensors").unlink()


def published() -> Path | None:
    # The network that the package runs, beside the weights that are read here.
    known = silero_file()
    path = None if known is None else known.with_name("silero_vad.jit")
    return path if path is not None and path.is_file() else None


@pytest.mark.skipif(published() is None, reason="the package silero-vad is not installed")
def test_the_published_network_says_the_same(tmp_path: Path) -> None:
    network: Any = torch.jit.load(str(published()))
    kinds = ("weight", "bias")
    names = {"stft.forward_basis_buffer": "stft_conv.weight"}
    for kind in kinds:
        names |= {f"encoder.{i}.reparam_conv.{kind}": f"conv{i + 1}.{kind}" for i in range(4)}
        names |= {f"decoder.rnn.{kind}_{s}": f"lstm_cell.{kind}_{s}" for s in ("ih", "hh")}
        names[f"decoder.decoder.2.{kind}"] = f"final_conv.{kind}"
    state = network._model.state_dict()
    path = tmp_path / "a.safetensors"
    save_file({own: state[each].contiguous() for each, own in names.items()}, path)
    sound = noise(40 * CHUNK)
    with torch.no_grad():
        wanted = [float(network(torch.tensor(part), 16_000)) for part in np.split(sound, 40)]
    assert np.abs(SpeechFinder(path).probabilities(sound) - wanted).max() < 2e-5
