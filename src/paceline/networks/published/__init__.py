"""Drafters that others publish, in the layouts of those who train them.

A head reads the target's hidden states at some boundaries, and may have a width, rotary positions,
an embedding and a LM head of its own. Boundary b is the state that enters layer b; that of as many
layers as there are comes before the final norm, and `FINAL` is the state after it.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import TypeAlias

from paceline.errors import InvalidOption, ModelError
from paceline.models import kinds
from paceline.models.gguf import GGUFFile
from paceline.models.hub import from_hub
from paceline.models.safetensors import SafetensorsFiles
from paceline.models.source import unknown_model
from paceline.models.tokenizer import read_json
from paceline.networks import assistant
from paceline.networks.pickled import PickledTensors
from paceline.networks.published.directories import directory_head
from paceline.networks.published.gguf import gguf_head
from paceline.networks.published.head import HeadTensors, PublishedHead
from paceline.networks.published.layerless import medusa_head, speculator_head
from paceline.networks.published.wirings import DRAFTERS

# Files of weights in a directory, the first that is there.
_FILES = (
    "model.safetensors",
    "medusa_lm_head.safetensors",
    "pytorch_model.bin",
    "medusa_lm_head.pt",
)
# A drafter of others, opened.
Published: TypeAlias = PublishedHead | assistant.PublishedAssistant


def open_head(path: Path) -> Published | None:
    """Open a published drafter: a directory, a safetensors file in one, or a GGUF file.

    Return None for a model, and for what is not known at all.

    Raises:
        InvalidOption: it is a published drafter of a kind that is not read, or half of one.
        ModelError: its files cannot be read.
    """
    if path.suffix == ".gguf":
        return _in_gguf(path)
    folder = path if path.is_dir() else path.parent
    config = read_json(folder / "config.json") if (folder / "config.json").is_file() else {}
    kind = kinds.drafter_kind(config)
    _check_kind(path, kind)
    if kind == assistant.KIND:
        return assistant.assistant_in(path, config)
    try:
        tensors, names, metadata = _opened(path)
    except ModelError:
        if kind is None:
            return None
        raise
    kind = kind or _kind_of(names)
    if kind is None:
        return None
    if kind == "Medusa":
        return medusa_head(path, config, tensors, names)
    if kind == "MLP speculator":
        return speculator_head(path, config, tensors, names)
    return directory_head(path, config, kind, tensors, names, metadata)


def _opened(path: Path) -> tuple[HeadTensors, list[str], Mapping[str, str]]:
    # The tensors of a file or directory, their names, and what the file says beside.
    if path.is_dir() and not (path / "model.safetensors.index.json").is_file():
        there = (path / name for name in _FILES)
        path = next((each for each in there if each.is_file()), path)
    if path.is_file() and path.suffix != ".safetensors":
        pickled = PickledTensors(path)
        return pickled, pickled.names(), {}
    files = SafetensorsFiles(path)
    return files, list(files.index()), files.metadata


def _kind_of(names: Sequence[str]) -> str | None:
    # Of a drafter whose config is that of a plain model, or says nothing.
    found = set(names)
    if any(re.fullmatch(r"(medusa_head\.)?0\.0\.linear\.weight", each) for each in names):
        return "Medusa"
    if "fc.weight" not in found:
        return None
    if "midlayer.hidden_norm.weight" in found:
        return "EAGLE-3"
    alone = "layers.0.self_attn.q_proj.weight" in found and "norm.weight" not in found
    return "EAGLE-1" if alone else None


def published_head(named: str) -> Published | None:
    """Open what is named as a draft model, if that is a published drafter: a path, or a hub id.

    Return None for a model. Raises as `open_head`.
    """
    path = Path(named).expanduser()
    if not path.exists() and re.fullmatch(r"[\w-][\w.-]*/[\w-][\w.-]*", named):
        path = from_hub(named, None, partial(unknown_model, named), drafter=True)
    return open_head(path) if path.exists() else None


def _in_gguf(path: Path) -> Published | None:
    file = GGUFFile(path)
    kind = kinds.drafter_kind({"general.architecture": file.metadata.get("general.architecture")})
    _check_kind(path, kind)
    if kind is None:
        return None
    return assistant.assistant_of(file) if kind == assistant.KIND else gguf_head(file, kind)


def _check_kind(path: Path, kind: str | None) -> None:
    if kind not in (None, *DRAFTERS):
        raise InvalidOption(
            f"{path} is a published drafter of kind {kind}, which is not read: give one of kind "
            f"{', '.join(DRAFTERS)}, or a draft model"
        )
