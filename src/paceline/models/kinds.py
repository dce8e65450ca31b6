"""What a file or a directory is that is no model which runs here, said before it is read."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from paceline.errors import ModelError

_POINTER = b"version https://git-lfs"
_PICKLES = (".bin", ".pth", ".pt", ".ckpt")
_LFS = "a git-lfs pointer and not the file itself: run `git lfs pull`, or download it again"
_ADAPTER = "a LoRA adapter and no model: give its base model, and this with --adapter"
_PICKLED = "of pickled weights, which can run code and are not read: convert it to safetensors"
_CT2 = "a model of CTranslate2 without a whole model.bin: download it again"
_ONNX = "an ONNX model: give its GGUF file or Hugging Face directory"
_MATRIX = "an importance matrix and no model: give the model's file"
_EYE = "the part of a model that sees pictures (mmproj): give the language model"
_GGUF = {
    **{"adapter": _ADAPTER, "mmproj": _EYE, "clip": _EYE, "imatrix": _MATRIX},
    "vocab": "a vocabulary without weights: give the model's file",
}


def check_file(path: Path) -> None:
    """Raise ModelError if a file is known to be something else than a GGUF model."""
    try:
        with path.open("rb") as file:
            head = file.read(512)
    except OSError:
        return  # the reader of the file says why
    found = None
    if head.startswith(_POINTER):
        found = _LFS
    elif head.startswith(b"GGUF"):
        return
    elif path.suffix == ".safetensors":
        found = "weights alone: give the directory of the model"
    elif (any(head) and path.suffix in _PICKLES) or head[:2] in (b"PK", b"\x80\x02"):
        found = _PICKLED
    elif path.suffix == ".onnx":
        found = _ONNX
    elif b"\0" not in head and any(line.startswith(b"FROM ") for line in head.splitlines()):
        found = "a Modelfile: give the GGUF file that its FROM line names"
    elif "imatrix" in path.name:
        found = _MATRIX
    if found is not None:
        raise ModelError(f"{path} is {found}")


def check_gguf(path: Path, metadata: Mapping[str, Any]) -> None:
    """Raise ModelError if a GGUF file holds something else than a language model."""
    said = {metadata.get("general.type"), metadata.get("general.architecture")}
    for kind, found in _GGUF.items():
        if kind in said:
            raise ModelError(f"{path} is {found}")
    _check_drafter(path, {"general.architecture": metadata.get("general.architecture")})


def model_in(path: Path) -> Path:
    """Return a directory, or the GGUF file in it if that is the model.

    Raises ModelError if it is known to be something else than a model's directory.
    """
    names = {each.name for each in path.iterdir()}
    weights = sorted(each for each in names if each.endswith(".safetensors"))
    ggufs = first_parts(each for each in sorted(names) if each.endswith(".gguf"))
    pickles = {each for each in names if each.endswith(_PICKLES)}
    for name in (*weights, *names.intersection({"tokenizer.json", "config.json"})):
        with (path / name).open("rb") as file:
            if file.read(len(_POINTER)) == _POINTER:
                raise ModelError(f"{path / name} is {_LFS}")
    found = None
    if not names:
        found = "empty: give a model directory or a .gguf file"
    elif "adapter_config.json" in names and not {"model.safetensors", "config.json"} <= names:
        found = _ADAPTER
    elif "model_index.json" in names:
        found = "a model that makes pictures (diffusers): give a language model"
    elif {"blobs", "manifests"} <= names:
        found = "a store of models: give the GGUF file that is the largest of its blobs"
    elif len(ggufs) == 1 and not weights:
        return path / ggufs[0]
    elif ggufs and not weights:
        found = f"a folder of several models: give one of {', '.join(ggufs)} itself"
    elif not weights and names & {"vocabulary.txt", "vocabulary.json"} and pickles <= {"model.bin"}:
        found = _CT2  # whole ones are read elsewhere
    elif not weights and pickles:
        found = _PICKLED
    elif not weights and [*path.glob("*.onnx"), *path.glob("onnx/*.onnx")]:
        found = _ONNX
    if found is not None:
        raise ModelError(f"{path} is {found}")
    return path


# Drafters that others publish, by what their configs say; the first that fits.
_DRAFTERS = (
    (r"DFlash2|XPress|DFly", "DFlash2, XPress or DFly"),
    (r"DSpark|dspark", "DSpark"),
    (r"DFlash|dflash", "DFlash"),
    (r"PEagle|peagle", "P-EAGLE"),
    (r"Eagle3|eagle3|draft_vocab_size", "EAGLE-3"),
    (r"Eagle(Llama|Mistral|Qwen2?|Speculator)|\beagle\b", "EAGLE-1"),
    (r"MTPDraftModel|\bmtp\b", "MTP"),
    (r"Gemma4\w*Assistant|gemma4\w*[-_]assistant", "Gemma 4 assistant"),
    (r"[Mm]edusa", "Medusa"),
    (r"Arctic\w*Speculator|MLPVariant", "Arctic speculator"),
    (r"MLPSpeculator|mlp_speculator", "MLP speculator"),
    (r"pard2", "PARD-2"),
)


def _check_drafter(path: Path, config: Mapping[str, Any]) -> None:
    kind = drafter_kind(config)
    if kind is not None:
        raise ModelError(
            f"{path} is a published {kind} drafter and no model: give the model that it drafts "
            "for, and this with --draft-model"
        )


def drafter_kind(config: Mapping[str, Any]) -> str | None:
    """Return what kind of published drafter a `config.json` or GGUF metadata is of, if any."""
    named = config.get("architectures")
    words = [config.get("speculators_model_type"), config.get("general.architecture")]
    words += [
        config.get("model_type"),
        config.get("spd_type"),
        *(named if isinstance(named, list) else ()),
    ]
    keys = ("draft_vocab_size", "dflash_config", "pard2_target_layers", "medusa_num_heads")
    said = " ".join(map(str, [*words, *(key for key in keys if key in config)]))
    return next((kind for pattern, kind in _DRAFTERS if re.search(pattern, said)), None)


def first_parts(names: Iterable[str]) -> list[str]:
    """Return the GGUF files that begin a language model: no later parts, projectors, matrices."""
    found = []
    for name in names:
        part = re.search(r"-(\d{5})-of-\d{5}\.gguf$", name)
        other = re.search(r"mmproj|imatrix", name.lower())
        if not other and (part is None or int(part[1]) == 1):
            found.append(name)
    return found


def check_config(path: Path, config: Mapping[str, Any]) -> None:
    """Raise ModelError if a `config.json` is of a drafter, or of a model in MLX's own codes."""
    _check_drafter(path, config)
    said = config.get("quantization")
    if isinstance(said, Mapping) and {"group_size", "bits"} <= set(said):
        raise ModelError(
            f"{path} is a model in MLX's {said['bits']}-bit format, which is not read: give the "
            "original model, or its GGUF file"
        )
