"""GGUF reader: metadata, and tensors as stored or as floats.

The header is parsed here, since the package's `GGUFReader` makes a numpy array of every vocabulary
string, which is slow. The package decodes the block formats.

A file that is deleted or replaced while it is open goes on being read as it was. One that was cut
or written to is refused when a tensor is next asked for. A view that was handed out before a cut
must not be read any more: the system would end the process.
"""

from __future__ import annotations

import hashlib
import math
import mmap
import os
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
# GGML types: number, name, numbers in a block, bytes of a block.
_TABLE = """
0 F32 1 4, 1 F16 1 2, 2 Q4_0 32 18, 3 Q4_1 32 20, 6 Q5_0 32 22, 7 Q5_1 32 24, 8 Q8_0 32 34,
9 Q8_1 32 40, 10 Q2_K 256 84, 11 Q3_K 256 110, 12 Q4_K 256 144, 13 Q5_K 256 176, 14 Q6_K 256 210,
15 Q8_K 256 292, 16 IQ2_XXS 256 66, 17 IQ2_XS 256 74, 18 IQ3_XXS 256 98, 19 IQ1_S 256 50,
20 IQ4_NL 32 18, 21 IQ3_S 256 110, 22 IQ2_S 256 82, 23 IQ4_XS 256 136, 24 I8 1 1, 25 I16 1 2,
26 I32 1 4, 27 I64 1 8, 28 F64 1 8, 29 IQ1_M 256 56, 30 BF16 1 2, 34 TQ1_0 256 54, 35 TQ2_0 256 66,
39 MXFP4 32 17, 40 NVFP4 64 36, 41 Q1_0 128 18
"""
_TYPES = {
    int(number): (name, int(block), int(size))
    for number, name, block, size in map(str.split, _TABLE.split(","))
}
_U64 = struct.Struct("<Q")
_DIVISORS = ("rope_freqs.weight", "rope_factors_long.weight", "rope_factors_short.weight")
_SAMPLE = 4096  # bytes of each tensor that enter the fingerprint
_DEPTH = 4  # of arrays in arrays
_PIECE = 1 << 22  # numbers dequantized at once: the decoders take several times their room


@dataclass(frozen=True, slots=True)
class TensorInfo:
    """Shape of a tensor (outer dimension first), block format, offset in the file."""

    shape: tuple[int, ...]
    kind: int
    offset: int


class GGUFFile:
    """A memory-mapped GGUF file: metadata (arrays as lists or numpy arrays), tensors.

    Raises:
        ModelError: not a GGUF file, or a damaged one.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        try:
            with path.open("rb") as file:
                self._data = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
                self._opened = os.fstat(file.fileno())
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
        except ValueError as error:
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
        self._check_unchanged()
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
            ModelError: its type is unknown, or the file was cut or written to.
        """
        info = self.tensors[name]
        if info.kind not in _TYPES:
            raise self._unreadable(name, f"type {info.kind}")
        self._check_unchanged()
        kind, block, size = _TYPES[info.kind]
        rows, row = math.prod(info.shape[:-1]), info.shape[-1] // block * size
        raw = np.frombuffer(self._data, np.uint8, rows * row, info.offset)
        return kind, raw.reshape(rows, row)

    def read(self, name: str, rows: slice = slice(None)) -> LogitArray:
        """Return a tensor by its GGUF name, dequantized to float32; raises as `stored`.

        Some `rows` alone, of all outer dimensions as one, are `[rows, columns]`.
        """
        import gguf

        kind, raw = self.stored(name)
        whole, raw, shape = len(raw), raw[rows], self.tensors[name].shape
        values = np.empty((len(raw), shape[-1]), np.float32)
        step = max(1, _PIECE // shape[-1])
        try:
            number = gguf.GGMLQuantizationType[kind]
            with np.errstate(invalid="ignore", over="ignore"):  # what is not finite stays so
                for begin in range(0, len(raw), step):
                    piece = slice(begin, begin + step)
                    values[piece] = gguf.dequantize(raw[piece], number)
        except (NotImplementedError, KeyError) as error:
            raise self._unreadable(name, kind) from error
        return values.reshape(shape) if len(raw) == whole else values

    def _check_unchanged(self) -> None:
        cut = self._data.size() < len(self._data)
        try:
            now = os.stat(self.path)
        except OSError:  # deleted: the mapped file lives on
            now = None
        before = self._opened
        if cut or (
            now is not None
            and (now.st_dev, now.st_ino) == (before.st_dev, before.st_ino)
            and (now.st_size, now.st_mtime_ns) != (before.st_size, before.st_mtime_ns)
        ):
            raise ModelError(f"{self.path} was changed while it was open: load the model again")

    def _damaged(self, reason: str) -> ModelError:
        return ModelError(f"{self.path} is damaged ({reason}): download it again")

    def _unreadable(self, name: str, kind: str) -> ModelError:
        return ModelError(
            f"{self.path} stores {name!r} as {kind}, which cannot be read: "
            "choose another quantisation of the model"
        )


class _Header:
    # Raises ValueError, in one line. Nothing is allocated for a count before the file is known to
    # have the bytes for it.

    def __init__(self, data: mmap.mmap) -> None:
        self._data = data
        self._at = 4

    def read(self) -> tuple[Mapping[str, Any], Mapping[str, TensorInfo], int]:
        version = self._scalar("I")
        if version not in (2, 3):
            big = " (big-endian)" if version in (2 << 24, 3 << 24) else ""
            raise ValueError(f"unknown version {version}{big}")
        tensor_count, pair_count = self._scalar("Q"), self._scalar("Q")
        self._fits(tensor_count, 24, "tensors")
        self._fits(pair_count, 13, "entries")
        metadata: dict[str, Any] = {}
        for _ in range(pair_count):
            key = self._strings(1)[0]
            if key in metadata:
                raise ValueError(f"entry {key!r} occurs twice")
            metadata[key] = self._value(self._scalar("I"), _DEPTH)
        tensors: dict[str, TensorInfo] = {}
        for _ in range(tensor_count):
            name = self._strings(1)[0]
            if name in tensors:
                raise ValueError(f"tensor {name!r} occurs twice")
            tensors[name] = self._tensor(name)
        end = self._at
        alignment = metadata.get("general.alignment", 32)
        if type(alignment) is not int or alignment not in (1 << bit for bit in range(21)):
            raise ValueError(f"alignment {_short(alignment)}")
        start = -(-end // alignment) * alignment
        for name, info in tensors.items():
            tensors[name] = self._placed(name, info, start, alignment)
        return metadata, tensors, end

    def _tensor(self, name: str) -> TensorInfo:
        dimensions = self._scalar("I")
        if not 1 <= dimensions <= 4:
            raise ValueError(f"tensor {name!r} has {dimensions} dimensions")
        shape = tuple(reversed([self._scalar("Q") for _ in range(dimensions)]))
        if 0 in shape:
            raise ValueError(f"tensor {name!r} has no numbers")
        return TensorInfo(shape, self._scalar("I"), self._scalar("Q"))

    def _placed(self, name: str, info: TensorInfo, start: int, alignment: int) -> TensorInfo:
        # A type unknown here matters only to who asks for the tensor.
        kind, block, size = _TYPES.get(info.kind, ("", 1, 0))
        if info.shape[-1] % block:
            raise ValueError(
                f"tensor {name!r} has rows of {info.shape[-1]}, no whole blocks of {kind}"
            )
        if info.offset % alignment:
            raise ValueError(f"tensor {name!r} is not aligned")
        offset = start + info.offset
        if offset + math.prod(info.shape) // block * size > len(self._data):
            raise ValueError(f"it ends before tensor {name!r} does")
        return TensorInfo(info.shape, info.kind, offset)

    def _fits(self, count: int, size: int, what: str) -> None:
        if count * size > len(self._data) - self._at:
            raise ValueError(f"it ends before its {count} {what}")

    def _scalar(self, kind: str) -> Any:
        try:
            (value,) = struct.unpack_from("<" + kind, self._data, self._at)
        except struct.error as error:
            raise ValueError("it ends inside its header") from error
        self._at += struct.calcsize("<" + kind)
        return value

    def _value(self, kind: int, depth: int) -> Any:
        if kind == _STRING:
            return self._strings(1)[0]
        if kind == _ARRAY:
            return self._array(self._scalar("I"), self._scalar("Q"), depth - 1)
        if kind not in _SCALARS:
            raise ValueError(f"unknown value type {kind}")
        return self._scalar(_SCALARS[kind])

    def _array(self, kind: int, count: int, depth: int) -> Any:
        if kind == _STRING:
            self._fits(count, 8, "strings")
            return self._strings(count)
        if kind == _ARRAY:
            self._fits(count, 12, "arrays")
            if not depth:
                raise ValueError(f"arrays lie in more than {_DEPTH} arrays")
            return [self._value(_ARRAY, depth) for _ in range(count)]
        if kind not in _SCALARS:
            raise ValueError(f"unknown array type {kind}")
        size = struct.calcsize("<" + _SCALARS[kind])
        self._fits(count, size, "numbers")
        values = np.frombuffer(self._data, "<" + _SCALARS[kind], count, self._at)
        self._at += count * size
        return values

    def _strings(self, count: int) -> list[str]:
        # Vocabularies make this the hot loop of opening a file, hence the local names.
        data, at, unpack, out = self._data, self._at, _U64.unpack_from, []
        size = len(data)
        try:
            for _ in range(count):
                end = at + 8 + unpack(data, at)[0]
                if end > size:
                    raise ValueError("it ends inside its header")
                out.append(data[at + 8 : end].decode("utf-8", "replace"))
                at = end
        except struct.error as error:
            raise ValueError("it ends inside its header") from error
        self._at = at
        return out


def _short(value: object) -> str:
    return repr(value) if isinstance(value, int | float) else f"of kind {type(value).__name__}"


def quantize(kind: str, matrix: LogitArray) -> npt.NDArray[np.uint8]:
    """Return the rows of float32 `[rows, columns]` as blocks, uint8 `[rows, bytes]`."""
    if kind in ("F32", "F16"):
        dtype = np.float32 if kind == "F32" else np.float16
        return np.ascontiguousarray(matrix, dtype=dtype).view(np.uint8)
    import gguf

    return np.asarray(gguf.quantize(matrix, gguf.GGMLQuantizationType[kind])).view(np.uint8)
