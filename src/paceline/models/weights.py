"""Tensors of a model by canonical name, as stored or as floats, from GGUF files and safetensors.

Names are "embed", "norm", "head" (absent if tied) and "layers.N.PART" with the parts of
`families.base`, and "NAME.bias". Parts of expert E are "layers.N.experts.E.PART". Where a
model brings a layer that drafts, it is the one behind the last.
"""

from __future__ import annotations

import ctypes
import json
import mmap
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from paceline.core.types import LogitArray
from paceline.errors import InvalidOption, ModelError
from paceline.models.config import ModelConfig, exponentials
from paceline.models.families import family_of
from paceline.models.families.base import HF_ENDS, HF_PARTS, Family
from paceline.models.gguf import GGUFFile

_GGUF_ENDS = {"embed": "token_embd.weight", "norm": "output_norm.weight", "head": "output.weight"}


@dataclass(frozen=True, slots=True)
class Stored:
    """A matrix as a file has it.

    Attributes:
        kind: a type of GGUF files, such as "Q4_K" or "BF16".
        shape: rows and columns.
        blocks: uint8 `[rows of the file, bytes]`, a view of the mapped file.
        order: int64 `[rows]`, the file's row of each; None if they are in order.
        mapped: the blocks are pages of a file, which the system can read again.
    """

    kind: str
    shape: tuple[int, int]
    blocks: npt.NDArray[np.uint8]
    order: npt.NDArray[np.int64] | None = None
    mapped: bool = False

    def forget(self) -> None:
        """Let mapped pages go, which count as this process's memory until then."""
        if not self.mapped or not hasattr(mmap, "MADV_DONTNEED"):
            return
        page, start = mmap.PAGESIZE, self.blocks.ctypes.data
        begin, end = -(-start // page) * page, (start + self.blocks.nbytes) // page * page
        if begin < end:
            libc = ctypes.CDLL(None)
            libc.madvise(ctypes.c_void_p(begin), ctypes.c_size_t(end - begin), mmap.MADV_DONTNEED)


class Weights(Protocol):
    """Tensors of a model."""

    def __contains__(self, name: object) -> bool: ...

    def __getitem__(self, name: str) -> LogitArray:
        """Return contiguous, writable float32; ModelError if missing or unreadable."""
        ...

    def stored(self, name: str) -> Stored:
        """Return a matrix without reading it; ModelError as for floats."""
        ...


class _Reader(Protocol):
    # A file's tensors by the names that it gives them.

    def __contains__(self, name: object) -> bool: ...

    def shape(self, name: str) -> tuple[int, ...]: ...

    def read(self, name: str, rows: slice = ...) -> LogitArray: ...

    def stored(self, name: str) -> tuple[str, npt.NDArray[np.uint8]]: ...


class FileWeights:
    """`Weights` of a file: finds names, parts of fused tensors and the order of rows."""

    def __init__(self, reader: _Reader, config: ModelConfig, what: Path, *, gguf: bool) -> None:
        self._reader, self._config, self._what, self._gguf = reader, config, what, gguf
        self._family: Family = family_of(config)

    def __contains__(self, name: object) -> bool:
        return isinstance(name, str) and self._theirs(name) in self._reader

    def __getitem__(self, name: str) -> LogitArray:
        theirs = self._known(name)
        rows = self._rows(name)
        if self._gguf and ".experts." in name and isinstance(rows, slice):
            return self._reader.read(theirs, rows)  # not all of them for each
        values = self._reader.read(theirs)
        if rows is not None:
            values = np.ascontiguousarray(values[rows])
        return values if self._gguf else self._plain(name.rpartition(".")[2], values)

    def _plain(self, part: str, values: LogitArray) -> LogitArray:
        # What checkpoints hold in other words.
        family = self._family
        if part in family.logarithms:
            return -exponentials(values)
        bare = part in family.whole or family.hf_parts.get(part) in family.bare
        return values + 1 if family.norms_less_one and values.ndim == 1 and not bare else values

    def stored(self, name: str) -> Stored:
        theirs = self._known(name)
        shape = self._reader.shape(theirs)
        rows = self._rows(name)
        if len(shape) != (3 if self._gguf and ".experts." in name else 2):
            raise ModelError(
                f"{self._what} has {name} in {len(shape)} dimensions: download it again"
            )
        kind, blocks = self._reader.stored(theirs)
        if isinstance(rows, slice):
            blocks = blocks[rows]
            return Stored(kind, (len(blocks), shape[-1]), blocks, mapped=True)
        count = shape[0] if rows is None else len(rows)
        return Stored(kind, (count, shape[1]), blocks, rows, mapped=True)

    def check(self, given: Iterable[str]) -> None:
        """Raise ModelError unless a Llama-like model has just the `given` tensors of the file."""
        config = self._config
        parts = ["attention_norm", *"qkvo", "ffn_norm", "gate", "up", "down"]
        parts += ["q_norm", "k_norm"] if config.qk_norm else []
        parts += [f"{part}.bias" for part in "qkv"] if config.qkv_bias else []
        names = [f"layers.{layer}.{part}" for layer in range(config.layers) for part in parts]
        names += ["embed", "norm", *([] if config.tied_embeddings else ["head"])]
        wanted = {self._theirs(name) for name in names}
        # A tied head may be there as well, and the table of frequencies is computed.
        spare = {self._theirs("head")}
        found = {name for name in given if not name.endswith("rotary_emb.inv_freq")}
        for odd, what in ((found - wanted - spare, "is unknown"), (wanted - found, "is missing")):
            if odd:
                raise ModelError(
                    f"{self._what} is not the {config.family} model of its config.json, since "
                    f"tensor {min(odd)} {what}: download the model again"
                )

    def _known(self, name: str) -> str:
        theirs = self._theirs(name)
        if theirs not in self._reader:
            raise ModelError(f"{self._what} has no tensor {name}: download the model again")
        return theirs

    def _theirs(self, name: str) -> str:
        ends = _GGUF_ENDS if self._gguf else self._family.hf_ends
        if name in ends:
            return ends[name]
        _, _, rest = name.partition(".")
        layer, _, rest = rest.partition(".")
        part, _, kind = rest.partition(".")
        parts = self._family.gguf_parts if self._gguf else self._family.hf_parts
        prefix = "blk" if self._gguf else self._family.hf_layers
        if not self._gguf and layer.isdecimal() and int(layer) >= self._config.layers:
            if part in self._family.hf_mtp:
                return f"{self._family.hf_mtp[part]}.weight"
            layer, prefix = str(int(layer) - self._config.layers), "mtp.layers"
        expert = ""
        if part == "experts":
            expert, _, part = kind.partition(".")
            part, kind = f"experts.{part}", ""
        if part not in parts:
            return ""
        theirs = f"{prefix}.{layer}.{parts[part].format(expert)}"
        if parts[part] in self._family.bare:
            return "" if kind else theirs
        return f"{theirs}.{kind or 'weight'}"

    def _rows(self, name: str) -> slice | npt.NDArray[np.int64] | None:
        part = name.removesuffix(".bias").rpartition(".")[2]
        if ".experts." in name:
            if not self._gguf:
                return None
            *_, expert, _ = name.split(".")  # one behind another in one tensor
            height = self._reader.shape(self._theirs(name))[1]
            return slice(int(expert) * height, (int(expert) + 1) * height)
        config = self._config
        narrow = config.kv_heads * config.head_dim
        sizes = {"q": config.heads * config.head_dim, "k": narrow, "v": narrow}
        for fused in self._family.fused:
            if part in fused:
                each = [sizes.get(other, config.ffn_size) for other in fused]
                begin = sum(each[: fused.index(part)])
                return slice(begin, begin + each[fused.index(part)])
        if self._family.gated_queries and part in ("q", "q_gate"):
            pairs = np.arange(2 * sizes["q"]).reshape(config.heads, 2, config.head_dim)
            return np.ascontiguousarray(pairs[:, int(part == "q_gate")]).reshape(-1)
        if not (self._gguf and self._family.interleaved and part in ("q", "k")):
            return None
        # Both rotary halves of a head lie row by row in turns.
        rows = np.arange(sizes[part]).reshape(-1, config.head_dim // 2, 2)
        return np.ascontiguousarray(rows.swapaxes(1, 2)).reshape(-1)


def gguf_weights(file: GGUFFile) -> FileWeights:
    return FileWeights(file, file.config, file.path, gguf=True)


def safetensors_weights(directory: Path, config: ModelConfig) -> FileWeights:
    """Open the `*.safetensors` files of a directory, single or sharded.

    Raises:
        ModelError: they are missing or damaged, or a denoiser has more tensors than its family, or
            fewer.
    """
    files = SafetensorsFiles(directory)
    files.take_prefix()
    weights = FileWeights(files, config, directory, gguf=False)
    if family_of(config).facts:
        weights.check(files.index())
    return weights


def canonical_name(name: str) -> str:
    """Return the canonical name of a tensor of a Llama-like Hugging Face checkpoint."""
    for mine, theirs in HF_ENDS.items():
        if name == theirs:
            return mine
    layer, _, rest = name.removeprefix("model.layers.").partition(".")
    module, _, kind = rest.rpartition(".")
    part = next(mine for mine, theirs in HF_PARTS.items() if theirs == module)
    return f"layers.{layer}.{part}" + (".bias" if kind == "bias" else "")


class SafetensorsFiles:
    """Tensors of `*.safetensors` files by the names that they have there.

    Parsed here, which gives bfloat16 without a framework. `metadata` is what the files say beside.
    """

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

        Base models lack "model.", and wrappers put words before it.
        """
        wanted = "model.embed_tokens.weight"
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

    def shape(self, name: str) -> tuple[int, ...]:
        return tuple(self._places[name][2]["shape"])

    def read(self, name: str, rows: slice = slice(None)) -> LogitArray:
        path, _, entry = self._places[name]
        try:
            values = to_float32(self._raw(name), entry["dtype"]).reshape(entry["shape"])
            return np.ascontiguousarray(values[rows])
        except ValueError as error:
            raise self._damaged(name) from error
        except KeyError as error:
            raise ModelError(
                f"{path} stores {name} as {entry['dtype']}: only F64, F32, F16 and BF16 are read"
            ) from error

    def stored(self, name: str) -> tuple[str, npt.NDArray[np.uint8]]:
        entry = self._places[name][2]
        try:
            return entry["dtype"], self._raw(name).reshape(entry["shape"][0], -1)
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


def no_rows(width: int) -> LogitArray:
    return np.zeros((0, width), dtype=np.float32)


def with_rows(table: LogitArray, rows: LogitArray) -> tuple[LogitArray, int]:
    """Append embedding rows to a table; rows that it already holds are not added again.

    Args:
        table: float32 `[n, width]`.
        rows: float32 `[m, width]`, finite, at least one.

    Returns:
        The table, the same object if the rows were there, and the index of the first row.

    Raises:
        InvalidOption: no rows, another width, or values that are not finite.
    """
    wide = rows.ndim == 2 and rows.shape[1:] == table.shape[1:] and len(rows) > 0
    if not wide or not np.isfinite(rows).all():
        raise InvalidOption(
            f"embeddings must be finite rows of width {table.shape[1]}, not of shape {rows.shape}: "
            "train them for this model"
        )
    for first in range(len(table) - len(rows) + 1):
        if np.array_equal(table[first : first + len(rows)], rows):
            return table, first
    return np.concatenate([table, rows.astype(np.float32)]), len(table)
