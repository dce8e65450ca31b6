"""Whisper: logits beside those of transformers, files of two kinds, and what is refused."""

from __future__ import annotations

import json
import struct
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from transformers import WhisperConfig, WhisperForConditionalGeneration

from paceline.core.target import Listens, Rows
from paceline.core.tree import chain
from paceline.errors import InvalidOption, ModelError
from paceline.models.ct2 import CT2File
from paceline.models.families import hf_config
from paceline.models.source import DirectorySource, SpeechSource
from paceline.models.weights import FileWeights
from paceline.runtimes.reference.arithmetic import layer_normed
from paceline.runtimes.reference.ops import ReferenceOps
from paceline.runtimes.reference.target import ReferenceTarget

TEXT = [3, 17, 40, 2, 9]
ROWS, MELS = 18, 80


@pytest.fixture(scope="module")
def theirs() -> WhisperForConditionalGeneration:
    torch.manual_seed(5)
    config = WhisperConfig(
        vocab_size=64,
        d_model=64,
        encoder_layers=3,
        decoder_layers=2,
        encoder_attention_heads=4,
        decoder_attention_heads=4,
        encoder_ffn_dim=96,
        decoder_ffn_dim=96,
        max_source_positions=ROWS,
        max_target_positions=32,
        num_mel_bins=MELS,
        init_std=0.3,
        pad_token_id=0,
        bos_token_id=1,
        eos_token_id=1,
        decoder_start_token_id=1,
        suppress_tokens=None,
        begin_suppress_tokens=None,
    )
    model = WhisperForConditionalGeneration(config).eval()
    with torch.no_grad():
        for name, values in model.named_parameters():
            if name.endswith(("bias", "layer_norm.weight")):
                values += torch.randn_like(values) * 0.2
    return model


@pytest.fixture(scope="module")
def directory(
    theirs: WhisperForConditionalGeneration, tmp_path_factory: pytest.TempPathFactory
) -> Path:
    path = tmp_path_factory.mktemp("whisper")
    theirs.save_pretrained(path)
    return path


@pytest.fixture(scope="module")
def target(directory: Path) -> ReferenceTarget:
    source = DirectorySource(directory)
    return ReferenceTarget(source.config, source.weights(), "fp32")


def sound(seed: int = 0, rows: int = ROWS) -> np.ndarray:
    return np.random.default_rng(seed).normal(size=(2 * rows, MELS)).astype(np.float32)


def logits(target: Any, frames: np.ndarray, text: list[int] = TEXT) -> np.ndarray:
    cache = target.open_to(target.encode(frames))
    wanted = np.arange(len(text))
    return target.forward([Rows.draft(cache, text, wanted=wanted)])[0].logits.copy()


def their_logits(theirs: Any, frames: np.ndarray, text: list[int] = TEXT) -> np.ndarray:
    with torch.no_grad():
        out = theirs(torch.tensor(frames.T[None]), decoder_input_ids=torch.tensor([text]))
    return out.logits[0].numpy()


def near(found: np.ndarray, wanted: np.ndarray) -> bool:
    return bool(np.abs(found - wanted).max() < 2e-5 * np.abs(wanted).max())


def test_logits_are_those_of_transformers(target: ReferenceTarget, theirs: Any) -> None:
    assert isinstance(target, Listens)
    assert near(logits(target, sound()), their_logits(theirs, sound()))
    assert not near(logits(target, sound()), their_logits(theirs, sound(1)))


@pytest.mark.parametrize("op", ["gelu", "placed", "neighbours"])
def test_each_operation_matters(
    target: ReferenceTarget, theirs: Any, op: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def neighbours(ops: ReferenceOps, x: Any, stride: int = 1) -> Any:
        # The row behind comes first.
        before, own, behind = np.split(right(ops, x, stride), 3, axis=1)
        return np.concatenate([behind, own, before], axis=1)

    right, tanh = ReferenceOps.neighbours, ReferenceOps.gelu
    wrong: dict[str, Any] = {
        "gelu": lambda ops, x, exact: tanh(ops, x),
        "placed": lambda ops, x, table: x,
        "neighbours": neighbours,
    }
    monkeypatch.setattr(ReferenceOps, op, wrong[op])
    assert not near(logits(target, sound()), their_logits(theirs, sound()))


def test_a_text_in_parts_has_the_logits_of_the_whole(target: ReferenceTarget) -> None:
    whole = logits(target, sound())
    memory = target.encode(sound())
    cache = target.open_to(memory)
    target.prefill(cache, TEXT[:2])
    fork = target.fork(cache)
    draft = target.forward([Rows.draft(cache, TEXT[2:3], chain(TEXT[3:]))])[0]
    assert np.array_equal(draft.logits, whole[2:])
    target.keep(cache, 1, [0, 1])
    assert np.array_equal(target.forward([Rows.draft(fork, TEXT[2:3])])[0].logits, whole[2:3])
    # Texts share the memory, and it does not change, even if it is released.
    later = target.open_to(memory)
    target.release(memory)
    assert np.array_equal(target.forward([Rows.draft(later, TEXT[:1])])[0].logits, whole[:1])


def test_a_shorter_sound_is_heard_alone(target: ReferenceTarget) -> None:
    short = logits(target, sound()[:12])
    assert not np.array_equal(short, logits(target, sound()))
    assert np.isfinite(short).all()


@pytest.mark.parametrize("shape", [(2 * ROWS + 2, MELS), (7, MELS), (0, MELS), (8, 128)])
def test_other_frames_are_refused(target: ReferenceTarget, shape: tuple[int, int]) -> None:
    with pytest.raises(InvalidOption, match="even number of frames up to 36, of 80 mels"):
        target.encode(np.zeros(shape, np.float32))


def test_a_text_without_a_sound_is_refused(target: ReferenceTarget) -> None:
    with pytest.raises(InvalidOption, match="writes down sound"):
        target.open()


@pytest.mark.parametrize(
    "change",
    [{"activation_function": "relu"}, {"scale_embedding": True}, {"encoder_ffn_dim": 128}],
)
def test_other_whispers_are_refused(directory: Path, change: dict[str, Any]) -> None:
    config = json.loads((directory / "config.json").read_text())
    assert hf_config(config).encoder is not None
    with pytest.raises(ModelError, match="alike on both sides"):
        hf_config(config | change)


# Files of CTranslate2.

SCALARS = {
    "decoder/activation": (1, 3),
    "decoder/pre_norm": (1, 1),
    "decoder/num_heads": (2, 4),
    "encoder/num_heads": (2, 4),
}


def ct2_variables(theirs: WhisperForConditionalGeneration) -> dict[str, np.ndarray]:
    tensors = {name: values.numpy() for name, values in theirs.state_dict().items()}
    out: dict[str, np.ndarray] = {}
    for side, layers in (("encoder", 3), ("decoder", 2)):
        names = {"layer_norm": "layer_norm"} | {
            f"layers.{i}.{theirs}": f"layer_{i}/{own}"
            for i in range(layers)
            for theirs, own in {
                "self_attn_layer_norm": "self_attention/layer_norm",
                "self_attn.out_proj": "self_attention/linear_1",
                "encoder_attn_layer_norm": "attention/layer_norm",
                "encoder_attn.q_proj": "attention/linear_0",
                "encoder_attn.out_proj": "attention/linear_2",
                "final_layer_norm": "ffn/layer_norm",
                "fc1": "ffn/linear_0",
                "fc2": "ffn/linear_1",
            }.items()
        }
        names |= {"conv1": "conv1", "conv2": "conv2"}
        for name, own in names.items():
            norm = own.endswith("layer_norm")
            for kind, kept in {"weight": "gamma", "bias": "beta"}.items():
                found = tensors.get(f"model.{side}.{name}.{kind}")
                if found is not None:
                    out[f"{side}/{own}/{kept if norm else kind}"] = found
        for i in range(layers):
            for part, own, of in (("self_attn", "self_attention/linear_0", "qkv"),) + (
                (("encoder_attn", "attention/linear_1", "kv"),) if side == "decoder" else ()
            ):
                where = f"model.{side}.layers.{i}.{part}"
                rows = [tensors[f"{where}.{each}_proj.weight"] for each in of]
                zero = np.zeros(64, np.float32)
                biases = [tensors.get(f"{where}.{each}_proj.bias", zero) for each in of]
                out[f"{side}/layer_{i}/{own}/weight"] = np.concatenate(rows)
                out[f"{side}/layer_{i}/{own}/bias"] = np.concatenate(biases)
        table = tensors[f"model.{side}.embed_positions.weight"]
        out[f"{side}/position_encodings/encodings"] = table
    out["decoder/embeddings/weight"] = tensors["model.decoder.embed_tokens.weight"]
    return out


def text(name: str) -> bytes:
    return struct.pack("<H", len(name) + 1) + name.encode() + b"\0"


def ct2_bytes(
    variables: dict[str, np.ndarray], scalars: dict[str, tuple[int, int]] = SCALARS, spec: str = ""
) -> bytes:
    out = [struct.pack("<I", 6), text(spec or "WhisperSpec")]
    out.append(struct.pack("<II", 3, len(variables) + len(scalars)))
    kinds = {np.dtype(each): i for i, each in enumerate(["f4", "i1", "i2", "i4", "f2"])}
    for name, values in variables.items():
        sizes = struct.pack(f"<B{values.ndim}I", values.ndim, *values.shape)
        kind = struct.pack("<BI", kinds[values.dtype], values.nbytes)
        out += [text(name), sizes, kind, values.tobytes()]
    for name, (kind_of, value) in scalars.items():
        number = value.to_bytes(kind_of, "little")
        out += [text(name), b"\0", struct.pack("<BI", kind_of, len(number)), number]
    pair = text("decoder/projection/weight") + text("decoder/embeddings/weight")
    return b"".join([*out, struct.pack("<I", 1), pair])


def test_a_file_of_ctranslate2_is_the_checkpoint(
    theirs: WhisperForConditionalGeneration, target: ReferenceTarget, tmp_path: Path
) -> None:
    path = tmp_path / "model.bin"
    path.write_bytes(ct2_bytes(ct2_variables(theirs)))
    file = CT2File(path)
    config = hf_config(file.config)
    own = ReferenceTarget(config, FileWeights(file, config, path, gguf=False), "fp32")
    assert (config.layers, config.encoder) == (2, target.config.encoder)
    assert np.array_equal(logits(own, sound()), logits(target, sound()))


@pytest.mark.parametrize("kind", [np.int8, np.int16])
def test_codes_of_ctranslate2_are_numbers_by_their_scales(
    kind: Any, theirs: WhisperForConditionalGeneration, tmp_path: Path
) -> None:
    variables = ct2_variables(theirs)
    plain, coded = dict(variables), dict(variables)
    for name, values in variables.items():
        if name.endswith("weight") and values.ndim > 1:  # of convolutions, too
            rows = np.abs(values).reshape(len(values), -1).max(axis=1)
            whole = np.float32(2**10) / rows.max()
            rows[rows == 0] = 127  # such as the row of what pads
            scales = np.asarray(np.float32(127) / rows if kind is np.int8 else whole, np.float32)
            wide = scales.reshape(-1, *[1] * (values.ndim - 1))
            coded[name] = np.rint(values * wide).astype(kind)
            coded[f"{name}_scale"] = scales
            plain[name] = coded[name].astype(np.float32) / wide
    said = []
    for number, each in enumerate((plain, coded, variables)):
        (tmp_path / str(number)).mkdir()
        path = tmp_path / str(number) / "model.bin"
        path.write_bytes(ct2_bytes(each))
        source = SpeechSource(path.parent)
        assert source.precision == ("int8" if each is coded else "file")
        said.append(logits(ReferenceTarget(source.config, source.weights(), "fp32"), sound()))
        name = "model.encoder.layers.1.self_attn.v_proj.weight"
        assert np.array_equal(CT2File(path).read(name, slice(3, 9)), CT2File(path).read(name)[3:9])
    assert np.array_equal(said[0], said[1])
    assert not np.array_equal(said[1], said[2])
    assert np.abs(said[1] - said[2]).max() < 0.1 * np.abs(said[2]).max()


def test_a_damaged_file_of_ctranslate2_is_refused(
    theirs: WhisperForConditionalGeneration, tmp_path: Path
) -> None:
    variables, path = ct2_variables(theirs), tmp_path / "model.bin"
    good = ct2_bytes(variables)
    coded = variables | {"decoder/embeddings/weight": np.zeros((64, 64), np.int8)}
    scales = "decoder/embeddings/weight_scale"
    lacks = {name: values for name, values in variables.items() if "conv1/weight" not in name}
    cases: dict[str, bytes] = {
        "cut short": good[:-3],
        "damaged at its end": good + b"more",
        "no Whisper of CTranslate2": ct2_bytes(variables, spec="TransformerSpec"),
        f"damaged at {scales}": ct2_bytes(coded),
        f"damaged at {scales}:": ct2_bytes(coded | {scales: np.zeros(64, np.float32)}),
        f"at {scales}": ct2_bytes(coded | {scales: np.ones(63, np.float32)}),
        "damaged at encoder/conv1/weight": ct2_bytes(lacks),
        "damaged at decoder/activation": ct2_bytes(
            variables, SCALARS | {"decoder/activation": (1, 0)}
        ),
        "cannot read": b"",
    }
    for said, content in cases.items():
        path.write_bytes(content)
        with pytest.raises(ModelError, match=said):
            CT2File(path)
    for cut in range(0, 200, 7):
        path.write_bytes(good[:cut] if cut else good[:1])
        with pytest.raises(ModelError):
            CT2File(path)


# Arithmetic.


def test_a_layer_norm_is_that_of_float64() -> None:
    rng = np.random.default_rng(3)
    x = (rng.normal(size=(5, 64)) * 3 + 40).astype(np.float32)
    weights, bias = rng.normal(size=(2, 64)).astype(np.float32)
    tensors = [torch.tensor(each).double() for each in (x, weights, bias)]
    wanted = torch.nn.functional.layer_norm(tensors[0], [64], *tensors[1:], 1e-5).numpy()
    assert np.abs(layer_normed(x, weights, bias, 1e-5) - wanted).max() < 5e-6
