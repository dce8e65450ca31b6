"""Weights as float32 arrays by Hugging Face tensor name."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, Protocol

import numpy as np

from paceline.core.types import LogitArray
from paceline.errors import ModelError


class Weights(Protocol):
    """Tensors of a model by name, such as `model.layers.0.self_attn.q_proj.weight`."""

    def __getitem__(self, name: str) -> LogitArray:
        """Return contiguous, writable float32; ModelError if missing or unreadable."""
        ...

    def __contains__(self, name: object) -> bool: ...


class SafetensorsWeights:
    """Tensors of a directory of `*.safetensors` files, single or sharded; raises ModelError.

    Parsed here, which gives bfloat16 without a framework.
    """

    def __init__(self, directory: Path) -> None:
        self._places: dict[str, tuple[Path, int, dict[str, Any]]] = {}
        for path in _weight_files(directory):
            start, header = _read_header(path)
            for name, entry in header.items():
                if name != "__metadata__":
                    self._places[name] = (path, start, entry)
        self._directory = directory
        self._maps: dict[Path, np.memmap[Any, np.dtype[np.uint8]]] = {}

    def __contains__(self, name: object) -> bool:
        return name in self._places

    def __getitem__(self, name: str) -> LogitArray:
        if name not in self._places:
            raise ModelError(f"{self._directory} has no tensor {name}: download the model again")
        path, start, entry = self._places[name]
        if path not in self._maps:
            self._maps[path] = np.memmap(path, dtype=np.uint8, mode="r")
        begin, end = entry["data_offsets"]
        raw = self._maps[path][start + begin : start + end]
        try:
            return _to_float32(raw, entry["dtype"]).reshape(entry["shape"])
        except ValueError as error:
            raise ModelError(f"{path} is damaged at {name}: download it again") from error
        except KeyError as error:
            raise ModelError(
                f"{path} stores {name} as {entry['dtype']}: only F64, F32, F16 and BF16 are read"
            ) from error

    def index(self) -> dict[str, Any]:
        """Return tensor name to header entry (dtype, shape, place)."""
        return {name: entry for name, (_, _, entry) in self._places.items()}


def _weight_files(directory: Path) -> list[Path]:
    index = directory / "model.safetensors.index.json"
    single = directory / "model.safetensors"
    if single.is_file():
        return [single]
    if index.is_file():
        try:
            names = set(json.loads(index.read_text(encoding="utf-8"))["weight_map"].values())
        except (ValueError, KeyError, AttributeError) as error:
            raise ModelError(f"{index} is damaged: download the model again") from error
        return [directory / name for name in sorted(names)]
    raise ModelError(f"{directory} has no model.safetensors: convert the model to safetensors")


def _read_header(path: Path) -> tuple[int, dict[str, Any]]:
    try:
        with path.open("rb") as file:
            size = int.from_bytes(file.read(8), "little")
            if not 0 < size < path.stat().st_size:
                raise ValueError("header length")
            header = json.loads(file.read(size))
            if not isinstance(header, dict):
                raise ValueError("header kind")
    except OSError as error:
        raise ModelError(
            f"cannot read {path} ({error.strerror}): download the model again"
        ) from error
    except ValueError as error:
        raise ModelError(f"{path} is not a safetensors file: download it again") from error
    return 8 + size, header


def _to_float32(raw: np.ndarray[Any, np.dtype[np.uint8]], kind: str) -> LogitArray:
    if kind == "BF16":  # the upper half of a float32
        return (raw.view("<u2").astype(np.uint32) << 16).view(np.float32)
    plain = {"F64": "<f8", "F32": "<f4", "F16": "<f2"}[kind]
    return np.require(raw.view(plain), np.float32, ["C", "W"])
