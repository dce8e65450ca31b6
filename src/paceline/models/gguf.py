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
import re
import struct
from array import array
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import islice
from pathlib import Path
from typing import Any, overload

import numpy as np
import numpy.typing as npt

from paceline.core.types import LogitArray
from paceline.errors import ModelError
from paceline.models.config import ModelConfig
from paceline.models.families import gguf_config
from paceline.native.blocks import TYPES

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
_TYPES = {block.number: (name, block.inputs, block.size) for name, block in TYPES.items()}
del _TYPES[TYPES["I8_K"].number]  # is of no file
_PART = re.compile(r"(.+)-(\d{5})-of-(\d{5})\.gguf")
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


def parts_of(path: Path) -> list[Path]:
    """Return the files of a model, "NAME-00001-of-00003.gguf" and so on, by any of them."""
    found = _PART.fullmatch(path.name)
    if found is None:
        return [path]
    name, count = found[1], int(found[3])
    return [path.with_name(f"{name}-{i:05}-of-{count:05}.gguf") for i in range(1, count + 1)]


class Strings(Sequence[str]):
    """An array of strings, each decoded when it is asked for: whole vocabularies rarely are."""

    def __init__(self, data: bytes, ends: Sequence[int]) -> None:
        """`data` has a length of 8 bytes before each string; `ends` are where each ends in it."""
        self._data, self._ends = data, ends

    def __len__(self) -> int:
        return len(self._ends)

    @overload
    def __getitem__(self, index: int) -> str: ...
    @overload
    def __getitem__(self, index: slice) -> list[str]: ...
    def __getitem__(self, index: int | slice) -> str | list[str]:
        if isinstance(index, slice):
            return [self[each] for each in range(*index.indices(len(self)))]
        index = range(len(self))[index]
        begin = self._ends[index - 1] if index else 0
        return self._data[begin + 8 : self._ends[index]].decode("utf-8", "replace")

    def __iter__(self) -> Iterator[str]:
        data, begin = self._data, 0
        for end in self._ends:
            yield data[begin + 8 : end].decode("utf-8", "replace")
            begin = end

    def __eq__(self, other: object) -> bool:
        if isinstance(other, Strings):
            return self._data == other._data
        return isinstance(other, list) and list(self) == other

    __hash__ = None  # type: ignore[assignment]


class GGUFFile:
    """A memory-mapped GGUF file: metadata (arrays as `Strings`, lists or numpy arrays), tensors.

    A model in several files is read by any of them, as the whole that it is.

    Raises:
        ModelError: not a GGUF file, a damaged one, or a part is missing.
    """

    def __init__(self, path: Path, whole: bool = True) -> None:
        """Open a file, `whole` or as the one part that it is."""
        parts = parts_of(path) if whole else [path]
        missing = [part.name for part in parts if not part.is_file()]
        if len(parts) > 1 and missing:
            raise ModelError(
                f"{path} is one of {len(parts)} files of a model, and {missing[0]} is not beside "
                "it: download that too"
            )
        self.path = path = parts[0]
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
            header = _Header(self._data)
            self.metadata, self.tensors, self._header_end = header.read()
            self._spans = header.spans
        except ValueError as error:
            raise self._damaged(str(error)) from error
        count = int(self.metadata.get("split.count", 1))
        if whole and count != len(parts):
            raise ModelError(
                f"{path} says that it is one of {count} files of a model: keep their names, such "
                f"as NAME-00001-of-{count:05}.gguf"
            )
        self._parts = [self, *(GGUFFile(part, whole=False) for part in parts[1:])]
        self._own = self.tensors
        self.tensors = {name: info for part in self._parts for name, info in part.tensors.items()}
        if len(parts) > 1 and len(self.tensors) != self.metadata.get("split.tensors.count"):
            raise self._damaged(f"its parts have {len(self.tensors)} tensors")

    @cached_property
    def config(self) -> ModelConfig:
        """The model's config; raises ModelError for unsupported families."""
        shapes = {name: info.shape for name, info in self.tensors.items()}
        divisors = {name: self.read(name).tolist() for name in _DIVISORS if name in self.tensors}
        return gguf_config(self.metadata, shapes, divisors)

    @cached_property
    def fingerprint(self) -> str:
        # Hash of the header, the size and a sample of every tensor.
        for part in self._parts:
            part._check_unchanged()
        if len(self._parts) > 1:
            size, header, samples = self._as_one()
        else:
            size, header = len(self._data), self._data[: self._header_end]
            places = (info.offset for info in self.tensors.values())
            samples = [self._data[place : place + _SAMPLE] for place in places]
        digest = hashlib.sha256(str(size).encode())
        digest.update(header)
        for sample in samples:
            digest.update(sample)
        return digest.hexdigest()[:16]

    def _as_one(self) -> tuple[int, bytes, list[bytes]]:
        # Size, header and samples of the one file that the parts were.
        alignment = int(self.metadata.get("general.alignment", 32))
        infos, rows, at = [], [], 0
        for part in self._parts:
            for name, info in part._own.items():
                raw, sizes = name.encode(), info.shape[::-1]
                kinds = f"<Q{len(raw)}sI{len(sizes)}QIQ"
                infos.append(struct.pack(kinds, len(raw), raw, len(sizes), *sizes, info.kind, at))
                _, block, size = _TYPES.get(info.kind, ("", 1, 0))
                count = math.prod(info.shape) // block * size
                room = -(-count // alignment) * alignment
                sample = part._data[info.offset : info.offset + min(count, _SAMPLE)]
                rows.append(sample.ljust(min(room, _SAMPLE), b"\0"))
                at += room
        kept = [self._data[span] for key, span in self._spans.items() if key[:6] != "split."]
        header = self._data[:8] + struct.pack("<QQ", len(infos), len(kept))
        header += b"".join([*kept, *infos])
        samples = []
        for i, row in enumerate(rows):
            after = islice(rows, i + 1, None)  # small tensors are read on
            while len(row) < _SAMPLE and (more := next(after, b"")):
                row += more
            samples.append(row[:_SAMPLE])
        return -(-len(header) // alignment) * alignment + at, header, samples

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
        if name not in self._own:
            part = next(part for part in self._parts if name in part._own)
            return part.stored(name)
        info = self.tensors[name]
        if info.kind not in _TYPES:
            raise self._unreadable(name, f"type {info.kind}")
        if _TYPES[info.kind][0] == "NVFP4":  # its scales are in tensors of their own
            raise self._unreadable(name, "NVFP4")
        self._check_unchanged()
        kind, block, size = _TYPES[info.kind]
        rows, row = math.prod(info.shape[:-1]), info.shape[-1] // block * size
        raw = np.frombuffer(self._data, np.uint8, rows * row, info.offset)
        return kind, raw.reshape(rows, row)

    def read(self, name: str, rows: slice = slice(None)) -> LogitArray:
        """Return a tensor by its GGUF name, dequantized to float32; raises as `stored`.

        Some `rows` alone, of all outer dimensions as one, are `[rows, columns]`.
        """
        kind, raw = self.stored(name)
        whole, raw, shape = len(raw), raw[rows], self.tensors[name].shape
        values = np.empty((len(raw), shape[-1]), np.float32)
        step = max(1, _PIECE // shape[-1])
        try:
            with np.errstate(invalid="ignore", over="ignore"):  # what is not finite stays so
                for begin in range(0, len(raw), step):
                    piece = slice(begin, begin + step)
                    values[piece] = dequantize(kind, raw[piece])
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
        self.spans: dict[str, slice] = {}  # of entries

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
            begin = self._at
            key = self._string()
            if key in metadata:
                raise ValueError(f"entry {key!r} occurs twice")
            metadata[key] = self._value(self._scalar("I"), _DEPTH)
            self.spans[key] = slice(begin, self._at)
        tensors: dict[str, TensorInfo] = {}
        for _ in range(tensor_count):
            name = self._string()
            if name in tensors:
                raise ValueError(f"tensor {name!r} occurs twice")
            tensors[name] = self._tensor(name)
        end = self._at
        alignment = metadata.get("general.alignment", 32)
        if type(alignment) is not int or alignment not in (1 << bit for bit in range(21)):
            kind = (
                "" if isinstance(alignment, int | float) else f"of kind {type(alignment).__name__}"
            )
            raise ValueError(f"alignment {kind or alignment}")
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
            return self._string()
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

    def _string(self) -> str:
        begin = self._at + 8
        self._at = begin + self._scalar("Q")
        if self._at > len(self._data):
            raise ValueError("it ends inside its header")
        return self._data[begin : self._at].decode("utf-8", "replace")

    def _strings(self, count: int) -> Strings:
        # Vocabularies make this the hot loop of opening a file, hence the local names.
        data, begin, at, unpack, ends = self._data, self._at, self._at, _U64.unpack_from, array("Q")
        size, end = len(data), ends.append
        try:
            for _ in range(count):
                at += 8 + unpack(data, at)[0]
                end(at - begin)
        except (struct.error, OverflowError) as error:
            raise ValueError("it ends inside its header") from error
        if at > size:
            raise ValueError("it ends inside its header")
        self._at = at
        return Strings(data[begin:at], ends)


def dequantize(kind: str, blocks: npt.NDArray[np.uint8]) -> LogitArray:
    """Return the rows of uint8 `[rows, bytes]`, blocks of a kind that has some, as float32."""
    import gguf

    found = gguf.dequantize(blocks, gguf.GGMLQuantizationType[kind])
    return np.asarray(found, np.float32)


def quantize(kind: str, matrix: LogitArray) -> npt.NDArray[np.uint8]:
    """Return the rows of float32 `[rows, columns]` as blocks, uint8 `[rows, bytes]`."""
    if kind in ("F32", "F16"):
        dtype = np.float32 if kind == "F32" else np.float16
        return np.ascontiguousarray(matrix, dtype=dtype).view(np.uint8)
    import gguf

    return np.asarray(gguf.quantize(matrix, gguf.GGMLQuantizationType[kind])).view(np.uint8)
