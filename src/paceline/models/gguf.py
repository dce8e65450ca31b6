"""GGUF reader: metadata, and tensors as stored or as floats.

The header is parsed here, since the package's `GGUFReader` makes a numpy array of every vocabulary
string, which is slow. The package decodes the block formats.
"""

from __future__ import annotations

import hashlib
import math
import mmap
import struct
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from paceline.core.types import LogitArray
from paceline.errors import ModelError
from paceline.models.config import ModelConfig
from paceline.models.families import gguf_config

_SCALARS = {
    0: "B",
    1: "b",
    2: "H",
    3: "h",
    4: "I",
    5: "i",
    6: "f",
    7: "?",
    10: "Q",
    11: "q",
    12: "d",
}
_STRING, _ARRAY = 8, 9
_U64 = struct.Struct("<Q")
_DIVISORS = ("rope_freqs.weight", "rope_factors_long.weight", "rope_factors_short.weight")
_SAMPLE = 4096  # bytes of each tensor that enter the fingerprint


@dataclass(frozen=True, slots=True)
class TensorInfo:
    """Shape of a tensor (outer dimension first), block format, offset in the file."""

    shape: tuple[int, ...]
    kind: int
    offset: int


class GGUFFile:
    """A memory-mapped GGUF file: metadata (arrays as lists of strings or numpy arrays), tensors.

    Raises:
        ModelError: not a GGUF file, or a damaged one.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        try:
            with path.open("rb") as file:
                self._data = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
        except OSError as error:
            raise ModelError(
                f"cannot read {path} ({error.strerror}): give the path of a model file"
            ) from error
        except ValueError as error:  # an empty file cannot be mapped
            raise self._damaged("it is empty") from error
        if self._data[:4] != b"GGUF":
            raise ModelError(f"{path} is not a GGUF file: give a .gguf or a model directory")
        try:
            self.metadata, self.tensors, self._header_end = _Header(self._data).read()
        except (struct.error, ValueError, OverflowError, MemoryError) as error:
            raise self._damaged(str(error)) from error

    @cached_property
    def config(self) -> ModelConfig:
        """The model's config; raises ModelError for unsupported families."""
        shapes = {name: info.shape for name, info in self.tensors.items()}
        divisors = {name: self.read(name).tolist() for name in _DIVISORS if name in self.tensors}
        return gguf_config(self.metadata, shapes, divisors)

    @cached_property
    def fingerprint(self) -> str:
        # Hash of the header, the size and a sample of every tensor.
        digest = hashlib.sha256(str(len(self._data)).encode())
        digest.update(self._data[: self._header_end])
        for info in self.tensors.values():
            digest.update(self._data[info.offset : info.offset + _SAMPLE])
        return digest.hexdigest()[:16]

    def __contains__(self, name: object) -> bool:
        return name in self.tensors

    def shape(self, name: str) -> tuple[int, ...]:
        return self.tensors[name].shape

    def stored(self, name: str) -> tuple[str, npt.NDArray[np.uint8]]:
        """Return the type of a tensor, such as "Q4_K", and its rows as they lie in the file.

        The rows are uint8 `[rows, bytes]`, a view of the mapped file; a vector is one row.

        Raises:
            ModelError: the tensor is truncated or its format is unknown.
        """
        import gguf

        info = self.tensors[name]
        try:
            kind = gguf.GGMLQuantizationType(info.kind)
            block, size = gguf.GGML_QUANT_SIZES[kind]
            *outer, inner = info.shape
            if inner % block:
                raise ValueError(f"rows of {inner} numbers are no whole blocks of {block}")
            rows, row = math.prod(outer), inner // block * size
            raw = np.frombuffer(self._data, np.uint8, rows * row, info.offset)
        except (ValueError, KeyError) as error:
            raise self._damaged(f"tensor {name}: {error}") from error
        return kind.name, raw.reshape(rows, row)

    def read(self, name: str) -> LogitArray:
        """Return a tensor by its GGUF name, dequantized to float32.

        Raises:
            ModelError: the tensor is truncated or its format is unknown.
        """
        import gguf

        kind, raw = self.stored(name)
        try:
            values = gguf.dequantize(raw, gguf.GGMLQuantizationType[kind])
        except NotImplementedError as error:
            raise ModelError(
                f"{self.path} stores {name} as {kind}, which cannot be read: "
                "choose another quantisation of the model"
            ) from error
        return np.require(values, np.float32, ["C", "W"]).reshape(self.tensors[name].shape)

    def _damaged(self, reason: str) -> ModelError:
        return ModelError(f"{self.path} is damaged ({reason}): download it again")


class _Header:
    def __init__(self, data: mmap.mmap) -> None:
        self._data = data
        self._at = 4

    def read(self) -> tuple[Mapping[str, Any], Mapping[str, TensorInfo], int]:
        version = self._scalar("I")
        if version not in (2, 3):
            raise ValueError(f"unknown version {version}")
        tensor_count, pair_count = self._scalar("Q"), self._scalar("Q")
        metadata: dict[str, Any] = {}
        for _ in range(pair_count):
            key = self._strings(1)[0]
            metadata[key] = self._value(self._scalar("I"))
        places: dict[str, TensorInfo] = {}
        for _ in range(tensor_count):
            name = self._strings(1)[0]
            sizes = [self._scalar("Q") for _ in range(self._scalar("I"))]
            places[name] = TensorInfo(tuple(reversed(sizes)), self._scalar("I"), self._scalar("Q"))
        alignment = int(metadata.get("general.alignment", 32))
        if alignment < 1:
            raise ValueError("its alignment is not positive")
        start = -(-self._at // alignment) * alignment
        tensors = {
            name: TensorInfo(info.shape, info.kind, start + info.offset)
            for name, info in places.items()
        }
        if any(info.offset >= len(self._data) for info in tensors.values()):
            raise ValueError("it ends before its tensors do")
        return metadata, tensors, self._at

    def _scalar(self, kind: str) -> Any:
        (value,) = struct.unpack_from("<" + kind, self._data, self._at)
        self._at += struct.calcsize("<" + kind)
        return value

    def _value(self, kind: int) -> Any:
        if kind == _STRING:
            return self._strings(1)[0]
        if kind == _ARRAY:
            return self._array(self._scalar("I"), self._scalar("Q"))
        if kind not in _SCALARS:
            raise ValueError(f"unknown value type {kind}")
        return self._scalar(_SCALARS[kind])

    def _array(self, kind: int, count: int) -> Any:
        if kind == _STRING:
            return self._strings(count)
        if kind not in _SCALARS:
            raise ValueError(f"unknown array type {kind}")
        values = np.frombuffer(self._data, "<" + _SCALARS[kind], count, self._at)
        self._at += values.nbytes
        return values

    def _strings(self, count: int) -> list[str]:
        # Vocabularies make this the hot loop of opening a file, hence the local names.
        data, at, unpack, out = self._data, self._at, _U64.unpack_from, []
        for _ in range(count):
            end = at + 8 + unpack(data, at)[0]
            out.append(data[at + 8 : end].decode("utf-8", "replace"))
            at = end
        if at > len(data):
            raise ValueError("it ends inside its header")
        self._at = at
        return out
