"""Tensors of pickles (pytorch_model.bin): zip archives with raw storages, read without torch.

A pickle can run any code. This reader knows the names that tensors are made of, and refuses all
others by name; numbers are views of the mapped file.
"""

from __future__ import annotations

import pickle
import zipfile
from collections import OrderedDict
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from paceline.core.types import LogitArray
from paceline.errors import ModelError
from paceline.models.safetensors import to_float32

# Storage classes of torch, and what safetensors calls their numbers.
_DTYPES = {
    "DoubleStorage": "F64",
    "FloatStorage": "F32",
    "HalfStorage": "F16",
    "BFloat16Storage": "BF16",
    "LongStorage": "I64",
    "IntStorage": "I32",
    "BoolStorage": "BOOL",
    "ByteStorage": "U8",
    "CharStorage": "I8",
}
_BYTES = {"F64": 8, "F32": 4, "F16": 2, "BF16": 2, "I64": 8, "I32": 4, "BOOL": 1, "U8": 1, "I8": 1}


class _Tensor(NamedTuple):
    storage: tuple[str, str]  # dtype and file in the archive
    begin: int  # in numbers
    shape: tuple[int, ...]


def _tensor(storage: Any, begin: int, shape: Any, strides: Any, *_: Any) -> _Tensor:
    step, sizes = 1, tuple(shape)
    for size, stride in zip(reversed(sizes), reversed(tuple(strides)), strict=True):
        if size > 1 and stride != step:
            raise pickle.UnpicklingError("a tensor lies in another order than by rows")
        step *= size
    return _Tensor(storage, int(begin), sizes)


def _parameter(data: _Tensor, *_: Any) -> _Tensor:
    return data


class _Unpickler(pickle.Unpickler):
    def find_class(self, module: str, name: str) -> Any:
        known: dict[tuple[str, str], Callable[..., Any]] = {
            ("collections", "OrderedDict"): OrderedDict,
            ("torch._utils", "_rebuild_tensor_v2"): _tensor,
            ("torch._utils", "_rebuild_parameter"): _parameter,
        }
        if module == "torch" and name in _DTYPES:
            return _DTYPES[name]
        if (module, name) not in known:
            raise pickle.UnpicklingError(f"it names {module}.{name}, which is no tensor")
        return known[module, name]

    def persistent_load(self, pid: Any) -> tuple[str, str]:
        _, dtype, key, *_ = pid
        return dtype, str(key)


class PickledTensors:
    """Tensors by the names that they have in the file.

    Raises ModelError if the file is damaged, is of the format before 2020, or holds more than
    tensors.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        try:
            with zipfile.ZipFile(path) as archive:
                [listing] = [each for each in archive.namelist() if each.endswith("/data.pkl")]
                found = _Unpickler(archive.open(listing)).load()
                self._places = {
                    each.filename.removeprefix(listing.removesuffix("data.pkl")): each
                    for each in archive.infolist()
                }
            self._map = np.memmap(path, np.uint8, mode="r")
            tensors = found.get("state_dict", found)
            self._tensors: dict[str, _Tensor] = {
                name: each for name, each in tensors.items() if isinstance(each, _Tensor)
            }
            for name in self._tensors:
                self._raw(name)
        except (OSError, ValueError, LookupError, TypeError, AttributeError) as error:
            raise self._refused(error) from error
        except (pickle.UnpicklingError, zipfile.BadZipFile, EOFError) as error:
            raise self._refused(error) from error

    def __contains__(self, name: object) -> bool:
        return name in self._tensors

    def names(self) -> list[str]:
        return list(self._tensors)

    def shape(self, name: str) -> tuple[int, ...]:
        return self._tensors[name].shape

    def read(self, name: str, rows: slice = slice(None)) -> LogitArray:
        kind, raw = self.stored(name)
        found = to_float32(raw.reshape(-1), kind).reshape(self.shape(name))
        return np.ascontiguousarray(found[rows])

    def stored(self, name: str) -> tuple[str, npt.NDArray[np.uint8]]:
        """Return the type of a tensor, such as "BF16", and its rows as uint8 `[rows, bytes]`."""
        tensor = self._tensors[name]
        return tensor.storage[0], self._raw(name).reshape(tensor.shape[0], -1)

    def _raw(self, name: str) -> npt.NDArray[np.uint8]:
        (kind, key), begin, shape = self._tensors[name]
        entry = self._places[f"data/{key}"]
        if entry.compress_type != zipfile.ZIP_STORED:
            raise ValueError("its tensors are compressed")
        at = entry.header_offset  # of a local header, whose own lengths count
        start = at + 30 + sum(map(int, self._map[at + 26 : at + 30].view("<u2")))
        size = _BYTES[kind]
        first, count = begin * size, int(np.prod(shape, dtype=np.int64)) * size
        if first + count > entry.file_size or start + entry.file_size > len(self._map):
            raise ValueError(f"it ends before tensor {name!r} does")
        return self._map[start + first : start + first + count]

    def _refused(self, error: Exception) -> ModelError:
        return ModelError(
            f"{self._path} is not read as pickled tensors ({error}): convert it to safetensors, or "
            "download it again"
        )
