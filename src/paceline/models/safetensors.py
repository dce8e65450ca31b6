"""Safetensors reader: tensors of `*.safetensors` files as stored or as floats.

Parsed here, which gives bfloat16 without a framework.
"""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from paceline.core.types import LogitArray
from paceline.errors import ModelError


class SafetensorsFiles:
    """Tensors by the names that they have there; `metadata` is what the files say beside."""

    def __init__(self, directory: Path) -> None:
        """Open the files of a directory, or the one that is given."""
        self._places: dict[str, tuple[Path, int, dict[str, Any]]] = {}
        self.metadata: dict[str, str] = {}
        for path in _weight_files(directory):
            start, header = _read_header(path)
            said = header.pop("__metadata__", None)
            self.metadata |= said if isinstance(said, dict) else {}
            for name, entry in header.items():
                self._places[name] = (path, start, entry)
        self._maps: dict[Path, np.memmap[Any, np.dtype[np.uint8]]] = {}

    def take_prefix(self) -> None:
        """Name tensors as a causal language model's, where only what stands before differs.

        Base models lack "model.", and wrappers put words before it; what has an encoder stays.
        """
        wanted = "model.embed_tokens.weight"
        if any(name.startswith("model.encoder.") for name in self._places):
            return
        ends = [each for each in self._places if each.endswith(wanted.removeprefix("model."))]
        if wanted in self._places or len(ends) != 1:
            return
        body = ends[0].removesuffix(wanted.removeprefix("model."))
        around = body.removesuffix("model.")
        self._places = {
            f"model.{name.removeprefix(body)}"
            if name.startswith(body) and not name.startswith(f"{around}lm_head.")
            else name.removeprefix(around): place
            for name, place in self._places.items()
        }

    def __contains__(self, name: object) -> bool:
        return name in self._places

    def kind(self, name: str) -> str:
        """Return the type of a tensor, such as "BF16"."""
        return str(self._places[name][2]["dtype"])

    def shape(self, name: str) -> tuple[int, ...]:
        return tuple(self._places[name][2]["shape"])

    def read(self, name: str, rows: slice = slice(None)) -> LogitArray:
        """Return a tensor; some `rows` alone, of all outer dimensions as one, are a matrix."""
        path, _, entry = self._places[name]
        try:
            if rows == slice(None):
                values = to_float32(self._raw(name), entry["dtype"]).reshape(entry["shape"])
                return np.ascontiguousarray(np.atleast_1d(values))
            _, raw = self.stored(name)
            values = to_float32(raw[rows].reshape(-1), entry["dtype"])
            return np.ascontiguousarray(values.reshape(-1, entry["shape"][-1]))
        except ValueError as error:
            raise self._damaged(name) from error
        except KeyError as error:
            raise ModelError(
                f"{path} stores {name} as {entry['dtype']}: only F64, F32, F16 and BF16 are read"
            ) from error

    def stored(self, name: str) -> tuple[str, npt.NDArray[np.uint8]]:
        entry = self._places[name][2]
        try:
            outer = math.prod(entry["shape"][:-1] or entry["shape"])
            return entry["dtype"], self._raw(name).reshape(outer, -1)
        except ValueError as error:
            raise self._damaged(name) from error

    def index(self) -> dict[str, Any]:
        """Return tensor name to header entry (dtype, shape, place)."""
        return {name: entry for name, (_, _, entry) in self._places.items()}

    def _raw(self, name: str) -> npt.NDArray[np.uint8]:
        path, start, entry = self._places[name]
        if path not in self._maps:
            self._maps[path] = np.memmap(path, dtype=np.uint8, mode="r")
        if path.exists() and path.stat().st_size != len(self._maps[path]):
            raise ModelError(f"{path} was changed while it was open: load the model again")
        begin, end = entry["data_offsets"]
        raw: npt.NDArray[np.uint8] = self._maps[path][start + begin : start + end]
        return raw

    def _damaged(self, name: str) -> ModelError:
        return ModelError(f"{self._places[name][0]} is damaged at {name}: download it again")


def _weight_files(directory: Path) -> list[Path]:
    if directory.is_file():
        return [directory]
    index = directory / "model.safetensors.index.json"
    single = directory / "model.safetensors"
    if single.is_file():
        return [single]
    if index.is_file():
        try:
            names = set(json.loads(index.read_text(encoding="utf-8"))["weight_map"].values())
            files = [directory / name for name in sorted(names)]
        except (ValueError, KeyError, AttributeError, TypeError, RecursionError) as error:
            raise ModelError(f"{index} is damaged: download the model again") from error
        missing = [file.name for file in files if not file.is_file()]
        if missing:
            raise ModelError(
                f"{directory} lacks {missing[0]}, one of the {len(files)} files of its weights: "
                "download that too"
            )
        return files
    raise ModelError(f"{directory} has no model.safetensors: convert the model to safetensors")


def _read_header(path: Path) -> tuple[int, dict[str, Any]]:
    try:
        with path.open("rb") as file:
            size = int.from_bytes(file.read(8), "little")
            room = path.stat().st_size - 8 - size
            if size == 0 or room < 0:
                raise ValueError("header length")
            header = json.loads(file.read(size), object_pairs_hook=_once)
            if not isinstance(header, dict):
                raise ValueError("header kind")
            for name, entry in header.items():
                if name != "__metadata__" and not _is_place(entry, room):
                    short = _is_place(entry, 1 << 63)
                    raise ValueError("it is cut short" if short else f"entry {name!r}")
    except OSError as error:
        raise ModelError(
            f"cannot read {path} ({error.strerror}): download the model again"
        ) from error
    except (ValueError, RecursionError) as error:
        raise ModelError(
            f"{path} is not a whole safetensors file ({error}): download it again"
        ) from error
    return 8 + size, header


def _once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    entries = dict(pairs)
    if len(entries) < len(pairs):
        raise ValueError("a name occurs twice")
    return entries


def _is_place(entry: object, room: int) -> bool:
    # Whether a header entry describes a tensor inside the `room` bytes after the header.
    if not isinstance(entry, dict) or not isinstance(entry.get("dtype"), str):
        return False
    shape, offsets = entry.get("shape"), entry.get("data_offsets")
    if not isinstance(shape, list) or not isinstance(offsets, list) or len(offsets) != 2:
        return False
    if not all(type(number) is int and 0 <= number < 1 << 63 for number in (*shape, *offsets)):
        return False
    return bool(offsets[0] <= offsets[1] <= room)


def to_float32(raw: np.ndarray[Any, np.dtype[np.uint8]], kind: str) -> LogitArray:
    """Return numbers from their bytes; KeyError for a type other than F64, F32, F16 and BF16."""
    if kind == "BF16":  # the upper half of a float32
        return (raw.view("<u2").astype(np.uint32) << 16).view(np.float32)
    plain = {"F64": "<f8", "F32": "<f4", "F16": "<f2"}[kind]
    return np.require(raw.view(plain), np.float32, ["C", "W"])
