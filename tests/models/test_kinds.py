"""Files and directories that are no models are called what they are; prefixes of names are none."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest
from safetensors.numpy import load_file, save_file
from tests.helpers.tiny_model import random_tensors, save_directory, save_gguf, tiny_config

from paceline.core.types import SamplingParams
from paceline.errors import InvalidOption, ModelError
from paceline.models.generation import completed
from paceline.models.source import resolve

POINTER = "version https://git-lfs.github.com/spec/v1\noid sha256:00\nsize 4\n"


def texts(**files: str | bytes) -> Callable[[Path], Path]:
    def make(folder: Path) -> Path:
        for name, text in files.items():
            path = folder / name.replace("__", "/").replace("_dot_", ".")
            path.parent.mkdir(exist_ok=True)
            path.write_bytes(text if isinstance(text, bytes) else text.encode())
        return folder

    return make


def only(name: str, content: str | bytes) -> Callable[[Path], Path]:
    def make(folder: Path) -> Path:
        path = folder / name
        path.write_bytes(content if isinstance(content, bytes) else content.encode())
        return path

    return make


def typed(kind: str | None, architecture: str) -> Callable[[Path], Path]:
    def make(folder: Path) -> Path:
        path = folder / "x.gguf"
        writer = gguf.GGUFWriter(path, architecture)
        if kind is not None:
            writer.add_type(kind)
        writer.add_tensor("a", np.zeros((32, 32), np.float32))
        writer.write_header_to_file()
        writer.write_kv_data_to_file()
        writer.write_tensors_to_file()
        writer.close()
        return path

    return make


def cut(folder: Path) -> Path:
    save_directory(folder, tiny_config())
    path = folder / "model.safetensors"
    path.write_bytes(path.read_bytes()[:-100])
    return folder


def without_tokenizer(folder: Path) -> Path:
    save_directory(folder, tiny_config())
    (folder / "tokenizer.json").unlink()
    return folder


MLX = json.dumps({"model_type": "llama", "quantization": {"group_size": 64, "bits": 4}})
HEAD = json.dumps({"model_type": "llama", "draft_vocab_size": 32000})
DFLASH = json.dumps({"architectures": ["DFlashDraftModel"], "model_type": "qwen3"})
CASES: dict[str, tuple[Callable[[Path], Path], str]] = {
    "adapter": (texts(adapter_config_dot_json="{}", adapter_dot_safetensors="x"), "LoRA adapter"),
    "gguf adapter": (typed("adapter", "llama"), "LoRA adapter"),
    "mmproj": (typed("mmproj", "clip"), "sees pictures"),
    "old mmproj": (typed(None, "clip"), "sees pictures"),
    "imatrix": (typed("imatrix", "imatrix"), "importance matrix"),
    "old imatrix": (only("m.imatrix", b"\1\0\0\0"), "importance matrix"),
    "head": (texts(config_dot_json=HEAD, model_dot_safetensors=b"\1"), "EAGLE-3 drafter and no"),
    "gguf head": (typed(None, "eagle3"), "EAGLE-3 drafter and no model"),
    "dflash": (texts(config_dot_json=DFLASH, model_dot_safetensors=b"\1"), "DFlash drafter"),
    "mlx": (texts(config_dot_json=MLX, model_dot_safetensors=b"\1"), "MLX's 4-bit format"),
    "pickles": (texts(config_dot_json="{}", pytorch_model_dot_bin=b"PK"), "pickled weights"),
    "pickles, words": (texts(vocabulary_dot_txt="a", model_dot_pt=b"PK"), "pickled weights"),
    "pickle": (only("consolidated.00.pth", b"PK\3\4"), "pickled weights"),
    "unnamed pickle": (only("weights", b"\x80\x02}q"), "pickled weights"),
    "empty pickle": (only("ggml-base.bin", b""), "damaged (it is empty): download it again"),
    "zeros": (only("ggml-base.bin", bytes(600)), "is not a GGUF file"),
    **{
        f"CTranslate2, {name}": (
            texts(config_dot_json="{}", vocabulary_dot_txt="a", tokenizer_dot_json="{}", **files),
            "is a model of CTranslate2 without a whole model.bin: download it again",
        )
        for name, files in {
            "nothing": {},
            "empty": {"model_dot_bin": b""},
            "zeros": {"model_dot_bin": bytes(600)},
            "others": {"model_dot_bin": b"\7" * 600},
            "a folder": {"model_dot_bin__a": b""},
        }.items()
    },
    "onnx": (texts(config_dot_json="{}", onnx__model_dot_onnx=b"\x08"), "ONNX"),
    "onnx file": (only("m.onnx", b"\x08\0"), "ONNX"),
    "modelfile": (only("Modelfile", "# mine\nFROM ./m.gguf\n"), "a Modelfile"),
    "store": (texts(blobs__a=b"", manifests__b=b""), "largest of its blobs"),
    "empty": (texts(), "is empty"),
    "pointer": (only("m.gguf", POINTER), "git-lfs pointer"),
    "pointers": (
        texts(config_dot_json="{}", model_dot_safetensors=POINTER, tokenizer_dot_json="{}"),
        "git-lfs pointer",
    ),
    "diffusers": (texts(model_index_dot_json="{}"), "that makes pictures"),
    "weights": (only("model.safetensors", b"\1\0\0\0\0\0\0\0{"), "weights alone"),
    "several": (texts(a_dot_gguf=b"", b_dot_gguf=b""), "give one of a.gguf, b.gguf"),
    "cut": (cut, "cut short"),
    "no tokenizer": (without_tokenizer, "no tokenizer.json"),
}


def opened(spec: str) -> Any:
    source = resolve(spec)
    return source.tokenizer(), source.weights()


@pytest.mark.parametrize("name", CASES)
def test_it_is_called_what_it_is(name: str, tmp_path: Path) -> None:
    make, said = CASES[name]
    with pytest.raises(ModelError, match=r"^[^\n]*$") as error:
        opened(str(make(tmp_path)))
    assert said in str(error.value)


def test_a_folder_with_one_gguf_file_is_that_model(tmp_path: Path) -> None:
    save_gguf(tmp_path / "m.gguf", tiny_config())
    (tmp_path / "mmproj-m.gguf").write_bytes(b"")
    assert resolve(str(tmp_path)).path.name == "m.gguf"
    (tmp_path / "m.gguf").rename(tmp_path / "sha256-0123")  # as stores of models name them
    assert resolve(str(tmp_path / "sha256-0123")).config.layers == 2


PREFIXES = {"model.": "", "": "", "module.model.": "module.", "_orig_mod.model.": "_orig_mod."}


@pytest.mark.parametrize("body", [*PREFIXES, "language_model.model."])
def test_words_before_the_names_of_tensors(body: str, tmp_path: Path) -> None:
    config = tiny_config()
    save_directory(tmp_path, config, random_tensors(config))
    path = tmp_path / "model.safetensors"
    expected = {name: np.array(array) for name, array in load_file(path).items()}
    around = body.removesuffix("model.")
    renamed = {
        f"{body}{name.removeprefix('model.')}" if name.startswith("model.") else around + name: each
        for name, each in expected.items()
    }
    save_file(renamed, path)
    weights = resolve(str(tmp_path)).weights()
    np.testing.assert_array_equal(weights["embed"], expected["model.embed_tokens.weight"])
    np.testing.assert_array_equal(weights["norm"], expected["model.norm.weight"])
    if "lm_head.weight" in expected:
        np.testing.assert_array_equal(weights["head"], expected["lm_head.weight"])


def test_sampling_that_files_ask_for(tmp_path: Path) -> None:
    save_directory(tmp_path, tiny_config())
    asked = {"temperature": 0.7, "top_k": 20, "repetition_penalty": 1.1, "do_sample": True, "x": 1}
    path = tmp_path / "generation_config.json"
    path.write_text(json.dumps(asked))
    expected = {"temperature": 0.7, "top_k": 20, "repetition_penalty": 1.1}
    assert resolve(str(tmp_path)).sampling == expected
    path.write_text(json.dumps({**asked, "do_sample": False}))
    assert resolve(str(tmp_path)).sampling == {"repetition_penalty": 1.1}
    path.unlink()
    assert resolve(str(tmp_path)).sampling == {}


def test_sampling_of_chance_means_nothing_where_the_likeliest_token_is_taken() -> None:
    asked = {"top_k": 20, "typical_p": 0.9, "mirostat": 2}
    found, own = completed(SamplingParams(temperature=1.0, top_k=7), asked, ["top_k"])
    assert (found.top_k, found.typical_p, found.mirostat) == (7, 0.9, 2)
    assert own == {"typical_p": 0.9, "mirostat": 2}
    assert completed(SamplingParams(), asked, ()) == (SamplingParams(top_k=20), {"top_k": 20})
    greedy = {**asked, "temperature": 0.0}
    assert completed(SamplingParams(temperature=1.0), greedy, ())[0] == SamplingParams(top_k=20)
    with pytest.raises(InvalidOption, match=r"ask for top_k -1, typical_p 0\.9.*top_k must be"):
        completed(SamplingParams(temperature=1.0), {"top_k": -1, "typical_p": 0.9}, ())
