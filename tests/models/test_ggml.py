"""Whisper files of whisper.cpp: tensors, words, and what is damaged."""

from __future__ import annotations

import struct
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest
import torch
from tests.models.test_whisper import ct2_bytes, ct2_variables
from transformers import WhisperConfig, WhisperForConditionalGeneration

from paceline.core.target import Rows
from paceline.errors import ModelError
from paceline.models.ct2 import CT2File
from paceline.models.ggml import GGMLFile, is_ggml
from paceline.models.source import SpeechSource, resolve
from paceline.runtimes.reference.target import ReferenceTarget

WORDS = [bytes([at]) for at in range(256)] + [b" a", b"an", b" an", b"th", b"the", b" the"]
MARKS = 2 + 6  # that begin and end, tasks; behind them are times
VOCABULARY = len(WORDS) + MARKS + 2 + 1501  # two languages
NUMBERS = {"F32": 0, "F16": 1, "Q5_0": 6, "Q8_0": 8, "Q2_K": 10}


@pytest.fixture(scope="module")
def theirs() -> WhisperForConditionalGeneration:
    torch.manual_seed(5)
    sizes = {"vocab_size": VOCABULARY, "d_model": 64, "encoder_layers": 3, "decoder_layers": 2}
    for side in ("encoder", "decoder"):
        sizes |= {f"{side}_attention_heads": 4, f"{side}_ffn_dim": 96}
    places = {"max_source_positions": 18, "max_target_positions": 32}
    config: Any = WhisperConfig(
        **sizes, **places, num_mel_bins=80, init_std=0.3, suppress_tokens=None,
        begin_suppress_tokens=None, pad_token_id=0, bos_token_id=1, eos_token_id=1,
    )  # fmt: skip
    model = WhisperForConditionalGeneration(config).eval()
    with torch.no_grad():
        for name, values in model.named_parameters():
            if name.endswith(("bias", "layer_norm.weight")):
                values += torch.randn_like(values) * 0.2
    return model


LOOKS = {"query": "q", "key": "k", "value": "v", "out": "out"}


def named(tensors: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
    # As OpenAI's checkpoints name them.
    out = {
        "encoder.positional_embedding": tensors["model.encoder.embed_positions.weight"],
        "decoder.positional_embedding": tensors["model.decoder.embed_positions.weight"],
        "decoder.token_embedding.weight": tensors["model.decoder.embed_tokens.weight"],
    }
    for kind in ("weight", "bias"):
        out[f"encoder.ln_post.{kind}"] = tensors[f"model.encoder.layer_norm.{kind}"]
        out[f"decoder.ln.{kind}"] = tensors[f"model.decoder.layer_norm.{kind}"]
        for conv in ("conv1", "conv2"):
            out[f"encoder.{conv}.{kind}"] = tensors[f"model.encoder.{conv}.{kind}"]
    for side, layers in (("encoder", 3), ("decoder", 2)):
        for layer in range(layers):
            a, b = f"model.{side}.layers.{layer}", f"{side}.blocks.{layer}"
            for kind in ("weight", "bias"):
                whole = (("mlp_ln", "final_layer_norm"), ("mlp.0", "fc1"), ("mlp.2", "fc2"))
                for here, there in whole:
                    out[f"{b}.{here}.{kind}"] = tensors[f"{a}.{there}.{kind}"]
                looks = (("attn", "self_attn"), ("cross_attn", "encoder_attn"))
                for here, there in looks[: 1 + (side == "decoder")]:
                    out[f"{b}.{here}_ln.{kind}"] = tensors[f"{a}.{there}_layer_norm.{kind}"]
                    for own, other in LOOKS.items():
                        if (own, kind) != ("key", "bias"):
                            name = f"{a}.{there}.{other}_proj.{kind}"
                            out[f"{b}.{here}.{own}.{kind}"] = tensors[name]
    return out


def ggml_bytes(
    tensors: Mapping[str, np.ndarray],
    sizes: list[int],
    words: list[bytes] = WORDS,
    kind: str = "F16",
    version: int = 2,
) -> bytes:
    number = NUMBERS[kind] if kind in ("F32", "F16") else 1000 * version + 7
    mels = sizes[-1]
    out = [b"lmgg", struct.pack("<11i", *sizes, number), struct.pack("<2i", mels, 201)]
    out += [bytes(4 * mels * 201), struct.pack("<i", len(words))]
    out += [struct.pack("<i", len(word)) + word for word in words]
    for name, values in tensors.items():
        if "conv" in name and "bias" in name:
            values = values[:, None]
        matrix = values.ndim == 2 and "positional" not in name and "bias" not in name
        own = kind if matrix else "F16" if values.ndim == 3 and kind != "F32" else "F32"
        raw = values.astype("<f2" if own == "F16" else "<f4")
        data = raw if own in ("F32", "F16") else gguf.quantize(raw, gguf.GGMLQuantizationType[own])
        out.append(struct.pack("<3i", values.ndim, len(name), NUMBERS[own]))
        out.append(struct.pack(f"<{values.ndim}i", *values.shape[::-1]))
        out += [name.encode(), data.tobytes()]
    return b"".join(out)


SIZES = [VOCABULARY, 18, 64, 4, 3, 32, 64, 4, 2, 80]


@pytest.fixture(scope="module")
def tensors(theirs: WhisperForConditionalGeneration) -> dict[str, np.ndarray]:
    return {name: values.numpy() for name, values in theirs.state_dict().items()}


def of(path: Path, content: bytes) -> GGMLFile:
    path.write_bytes(content)
    return GGMLFile(path)


@pytest.mark.parametrize("kind", ["F32", "F16", "Q8_0", "Q5_0"])
def test_tensors_are_those_of_ctranslate2(
    kind: str, theirs: Any, tensors: dict[str, np.ndarray], tmp_path: Path
) -> None:
    file = of(tmp_path / "ggml-a.bin", ggml_bytes(named(tensors), SIZES, kind=kind))
    half = kind != "F32"
    variables = {
        name: values.astype(np.float16) if half and values.ndim == 3 else values
        for name, values in ct2_variables(theirs).items()
    }
    (tmp_path / "model.bin").write_bytes(ct2_bytes(variables))
    other = CT2File(tmp_path / "model.bin")
    assert file.config == other.config | {"decoder_width": 64}
    for name in tensors:
        if name == "proj_out.weight":
            assert name not in file
            continue
        wanted = other.read(name)
        if wanted.ndim == 2 and "positions" not in name and kind != "F32":
            stored = gguf.GGMLQuantizationType[kind]
            wanted = gguf.dequantize(gguf.quantize(wanted, stored), stored)
        assert file.shape(name) == wanted.shape, name
        assert np.array_equal(file.read(name), wanted), name
        if wanted.ndim == 2:
            assert np.array_equal(file.read(name, slice(3, 5)), wanted[3:5])
            assert file.stored(name)[0] == ("F32" if "positions" in name else kind)


@pytest.mark.parametrize("kind", ["F32", "Q8_0"])
def test_a_model_of_whisper_cpp_runs(
    kind: str, theirs: Any, tensors: dict[str, np.ndarray], tmp_path: Path
) -> None:
    path = tmp_path / "ggml-tiny.bin"
    path.write_bytes(ggml_bytes(named(tensors), SIZES, kind=kind))
    assert is_ggml(path)
    source = resolve(str(path))
    assert isinstance(source, SpeechSource)
    assert source.name == "ggml-tiny"
    precision = "fp32" if kind == "F32" else "file"
    target = ReferenceTarget(source.config, source.weights(), precision)
    frames = np.random.default_rng(0).normal(size=(36, 80)).astype(np.float32)
    cache = target.open_to(target.encode(frames))
    found = target.forward([Rows.draft(cache, [3, 17, 40], wanted=np.arange(3))])[0].logits
    with torch.no_grad():
        out = theirs(torch.tensor(frames.T[None]), decoder_input_ids=torch.tensor([[3, 17, 40]]))
    wanted = out.logits[0].numpy()
    off = np.abs(found - wanted).max() / np.abs(wanted).max()
    assert off < (2e-5 if kind == "F32" else 0.05)
    assert (kind == "F32") == (off < 1e-4)


def test_words_are_merged_in_their_order(tensors: dict[str, np.ndarray], tmp_path: Path) -> None:
    path = tmp_path / "ggml-tiny.bin"
    path.write_bytes(ggml_bytes(named(tensors), SIZES))
    own = SpeechSource(path).tokenizer()
    end = len(WORDS)
    assert own.eos_token_ids == (end,)
    names = "endoftext startoftranscript en zh translate transcribe startoflm startofprev"
    marks = [*names.split(), "nospeech", "notimestamps"]
    assert own.special_ids == {f"<|{name}|>": end + at for at, name in enumerate(marks)}
    ids = own.encode(" the ban\n")
    assert [WORDS[each] for each in ids] == [b" the", b" ", b"b", b"an", b"\n"]
    assert own.decode(ids) == " the ban\n"


def test_words_of_other_converters_hold_no_marks(
    tensors: dict[str, np.ndarray], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("paceline.models.ggml._WORDS", len(WORDS) + 1)
    words = [*WORDS, b"<|endoftext|>"]
    file = of(tmp_path / "a.bin", ggml_bytes(named(tensors), SIZES, words))
    assert (file.words, len(file.marks)) == (WORDS, MARKS + 2)


def test_what_is_damaged_is_refused(tensors: dict[str, np.ndarray], tmp_path: Path) -> None:
    parts, path = named(tensors), tmp_path / "ggml-a.bin"
    good = ggml_bytes(parts, SIZES)
    embed = "decoder.token_embedding.weight"
    lacks = {name: values for name, values in parts.items() if name != embed}
    cases = {
        "cut short": good[:-3],
        "is cut short": good + b"more",
        "is damaged at a tensor": good + bytes(12),
        "no Whisper of whisper.cpp": good[:48] + struct.pack("<i", 128) + good[52:],
        "damaged at its sizes": ggml_bytes(parts, [VOCABULARY + 1, *SIZES[1:]]),
        "damaged at its words": ggml_bytes(parts, SIZES, [*WORDS, b"a"]),
        "damaged at encoder.ln_post.weight": good
        + struct.pack("<4i", 1, 22, 0, 64) + b"encoder.ln_post.weight",
        "has no tensor model.decoder.embed_tokens": ggml_bytes(lacks, SIZES),
        "of an old whisper.cpp": ggml_bytes(parts, SIZES, kind="Q8_0", version=1),
        "type 99, which does not run": good + struct.pack("<4i", 1, 1, 99, 64) + b"a",
        "type 8, which does not run": good + struct.pack("<4i", 1, 1, 8, 33) + b"a",
        "cannot read": b"",
    }  # fmt: skip
    assert of(path, good).config["d_model"] == 64
    for said, content in cases.items():
        with pytest.raises(ModelError, match=said):
            of(path, content)
    step = len(good) // 300
    said = []
    for cut in [*range(4, 200, 3), *range(200, len(good), step)]:
        try:
            file = of(path, good[:cut])
        except ModelError as error:
            said.append(str(error))
        else:  # behind a whole tensor
            assert len(file._places) < len(parts)
    assert len(said) > 300
    assert all("ggml-a.bin" in each for each in said)


def test_other_files_are_not_taken_for_whispers(tmp_path: Path) -> None:
    path = tmp_path / "a.bin"
    path.write_bytes(b"PK\x03\x04")
    assert not is_ggml(path)
    assert not is_ggml(tmp_path)
    with pytest.raises(ModelError, match="pickled"):
        resolve(str(path))
