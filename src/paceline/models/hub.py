"""Models on a Hugging Face hub: a directory of safetensors, or one quantisation of GGUF files."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

from paceline.errors import ModelError
from paceline.models.kinds import first_parts

_FILES = ["*.json", "*.jinja", "*.safetensors", "tokenizer.model"]
# What is taken if no quantisation is named, as llama.cpp does; else the first file by name.
_PREFERRED = ("Q4_K_M", "Q4_0")


def from_hub(
    model: str, quant: str | None, unknown: Callable[[str], ModelError], drafter: bool = False
) -> Path:
    """Download a model and return its directory, or its (first) GGUF file.

    Args:
        model: "owner/name".
        quant: quantisation of a GGUF file, such as "Q4_K_M"; None takes safetensors if there are
            any, else a usual one.
        unknown: makes the error, from a reason.
        drafter: pickled weights do as well, as published drafters have them.
    """
    try:
        import huggingface_hub as hub

        hub.logging.set_verbosity_error()  # type: ignore[no-untyped-call]  # we tell
    except ImportError as error:
        raise unknown(
            "hub models need the package huggingface_hub: pip install huggingface_hub"
        ) from error
    try:
        listed = None if quant is None else _files(hub, model)
        if listed is None:
            # Offline what is in the cache is found, which no list is needed for.
            path = Path(hub.snapshot_download(model, allow_patterns=_FILES))
            if (path / "config.json").is_file() and any(path.glob("*.safetensors")):
                return path
            listed = _files(hub, model)
        pickled = {"pytorch_model.bin", "medusa_lm_head.pt"}.intersection(listed)
        if drafter and pickled:
            return Path(hub.hf_hub_download(model, min(pickled))).parent
        ggufs = first_parts(sorted(each for each in listed if each.lower().endswith(".gguf")))
        name = _pick(ggufs, quant)
        if name is None and quant is None:
            return path
        if name is None:
            there = ", ".join(ggufs) or "none"
            raise unknown(f"the hub has no GGUF file of {quant} there; its GGUF files: {there}")
        begin, end, parts = name.partition("-00001-of-")
        rest = range(2, int(parts[:5] or 1) + 1)
        for each in (f"{begin}-{n:05d}{end[6:]}{parts}" for n in rest):
            hub.hf_hub_download(model, each)
        return Path(hub.hf_hub_download(model, name))
    except ModelError:
        raise
    except Exception as error:  # network, proxy, disk and hub errors share no base class
        lines = str(error).strip().splitlines()
        reason = lines[0] if lines else type(error).__name__
        raise unknown(f"not on this disk, and the hub says: {reason}") from error


def _files(hub: Any, model: str) -> list[str]:
    try:
        return list(hub.list_repo_files(model))
    except Exception:
        try:  # without a network: what was fetched before
            path = Path(hub.snapshot_download(model, local_files_only=True))
        except Exception:
            path = Path()
        if path == Path():
            raise
        return [str(each.relative_to(path)) for each in path.rglob("*.gguf")]


def _pick(names: list[str], quant: str | None) -> str | None:
    for tag in _PREFERRED if quant is None else (quant,):
        pattern = re.compile(rf"(?<![A-Za-z0-9]){re.escape(tag)}[.-]", re.IGNORECASE)
        for name in names:
            if pattern.search(name):
                return name
    return names[0] if names and quant is None else None
