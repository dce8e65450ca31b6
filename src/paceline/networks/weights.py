"""Trained networks on disk: safetensors with the network's description and provenance."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
from safetensors import SafetensorError, safe_open
from safetensors.numpy import save_file

from paceline.core.cache import whole_file
from paceline.core.types import IntArray, LogitArray
from paceline.errors import InvalidOption
from paceline.models.gguf import dequantize, quantize
from paceline.networks.base import Network, config_from, describe
from paceline.networks.catalogue import build
from paceline.networks.head_preview import SCREEN, Clusters, HeadPreview, read_head_preview
from paceline.weights import weight_files

_RETRAIN = "train or fetch it again"


class TensorFile(NamedTuple):
    """Tensors of a safetensors file by name, and its metadata."""

    tensors: dict[str, np.ndarray]
    metadata: dict[str, str]


def read_tensors(path: Path, holds: str, advice: str = _RETRAIN) -> TensorFile:
    """Read a safetensors file.

    Raises:
        InvalidOption: it is missing or damaged; the message says what it should hold, and `advice`.
    """
    with _opened(path, holds, advice) as file:
        tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
        return TensorFile(tensors, dict(file.metadata() or {}))


def read_metadata(
    path: Path, holds: str = "trained weights", advice: str = _RETRAIN
) -> dict[str, str]:
    """Read a file's header; raises InvalidOption as `read_tensors`."""
    with _opened(path, holds, advice) as file:
        return dict(file.metadata() or {})


@contextmanager
def _opened(path: Path, holds: str, advice: str) -> Iterator[Any]:
    try:
        with safe_open(path, framework="numpy") as file:
            yield file
    except (SafetensorError, OSError) as error:
        if advice == _RETRAIN and not path.exists():
            raise InvalidOption(f"there is no file {path}: name trained weights") from error
        reason = getattr(error, "strerror", None) or error
        raise InvalidOption(
            f"{path} holds no {holds}, or is damaged ({reason}): {advice}"
        ) from error


def write_tensors(
    path: Path,
    tensors: Mapping[str, np.ndarray],
    metadata: Mapping[str, str],
    advice: str = "choose another --out",
) -> None:
    """Write a safetensors file atomically; raises InvalidOption if it cannot be written."""
    rows = {name: np.ascontiguousarray(array) for name, array in tensors.items()}  # as is written
    try:
        with whole_file(path) as part:
            save_file(rows, part, dict(metadata))
    except (OSError, SafetensorError) as error:  # the latter wraps the system's while writing
        raise InvalidOption(f"cannot write {path} ({error}): {advice}") from error


_IDS = "draft_ids"

# How a file may hold matrices: in float16, or in blocks of 32 numbers as GGUF files do, which are
# a half or 3 in 10 of that. The CPU runtime runs them in such blocks in any case.
STORED = ("F16", "Q8_0", "Q4_0")
_BLOCK = 32  # numbers
_BLOCK_BYTES = {"Q8_0": 34, "Q4_0": 18}


class LazyTensors(Mapping[str, LogitArray]):
    """Float32 tensors by name, read when they are asked for and not kept."""

    def __init__(self, read: Mapping[str, Callable[[], LogitArray]]) -> None:
        self._read = dict(read)

    def __getitem__(self, name: str) -> LogitArray:
        return self._read[name]()

    def __iter__(self) -> Iterator[str]:
        return iter(self._read)

    def __len__(self) -> int:
        return len(self._read)

    def __contains__(self, name: object) -> bool:
        return name in self._read


@dataclass(frozen=True, slots=True)
class Trained:
    """A network with its parameters (float32) and provenance ("model": the target's fingerprint).

    `draft_ids` is int64 `[draft vocabulary]`, ascending. `head_preview` stays valid for changed
    parameters, since the head is frozen and errors cost acceptance alone.
    """

    network: Network
    parameters: Mapping[str, LogitArray]
    draft_ids: IntArray
    metadata: Mapping[str, str]
    head_preview: HeadPreview | None = None
    clusters: Clusters | None = None


def save_network(path: Path, trained: Trained) -> None:
    """Write a network and its head preview, atomically; raises InvalidOption.

    All numbers are float16, or matrices are in the blocks that metadata "stored" names.
    """
    head_preview = trained.head_preview.tensors() if trained.head_preview is not None else {}
    kind = trained.metadata.get("stored", "F16")
    tensors = {
        name: _packed(array, kind) for name, array in {**trained.parameters, **head_preview}.items()
    }
    tensors[_IDS] = trained.draft_ids.astype(np.int32)
    metadata = {**trained.metadata, "network": json.dumps(describe(trained.network))}
    write_tensors(path, tensors, metadata)


def _packed(array: LogitArray, kind: str) -> np.ndarray:
    if kind == "F16" or array.ndim != 2 or array.shape[1] % _BLOCK:
        return array.astype(np.float16)
    return quantize(kind, array.astype(np.float32))


def as_stored(array: LogitArray, metadata: Mapping[str, str]) -> LogitArray:
    """Return a parameter as a weights file with that metadata would hold it, as float32."""
    kind = metadata.get("stored", "F16")
    return _unpacked(_packed(array, kind), kind).astype(np.float32)


def _unpacked(array: np.ndarray, kind: str) -> np.ndarray:
    # Of a file: blocks that do not fit stay as they are, and have no shape of the network's.
    fits = kind in _BLOCK_BYTES and array.ndim == 2 and array.dtype == np.uint8
    if not fits or array.shape[1] % _BLOCK_BYTES[kind]:
        return array
    return dequantize(kind, array)


class Floats(Mapping[str, LogitArray]):
    """Parameters of a file that has them in blocks, made whenever they are asked for.

    A runtime packs them once, and floats are several times the file.
    """

    def __init__(self, stored: Mapping[str, np.ndarray], kind: str) -> None:
        self._stored, self._kind = stored, kind

    def __getitem__(self, name: str) -> LogitArray:
        return _unpacked(self._stored[name], self._kind).astype(np.float32, copy=False)

    def __contains__(self, name: object) -> bool:
        return name in self._stored

    def blocks(self, name: str, kind: str) -> npt.NDArray[np.uint8] | None:
        """Return a matrix as blocks of a kind, if the file has it so; its floats give the same."""
        array = self._stored[name]
        return array if kind == self._kind and array.dtype == np.uint8 else None

    def __iter__(self) -> Iterator[str]:
        return iter(self._stored)

    def __len__(self) -> int:
        return len(self._stored)


def load_network(path: Path) -> Trained:
    """Read a network; raises InvalidOption if the file is missing, damaged, or holds none."""
    tensors, metadata = read_tensors(path, "drafter network")
    try:
        entry: dict[str, Any] = json.loads(metadata["network"])
        network = build(entry["network"], config_from(entry["geometry"]), entry["settings"])
        expected = network.shapes()
    except (LookupError, ValueError, TypeError, AttributeError) as error:
        raise InvalidOption(
            f"{path} holds no drafter network, or is damaged ({error}): {_RETRAIN}"
        ) from error
    ids = tensors.pop(_IDS, None)
    kind = metadata.get("stored", "F16")
    floats = Floats(tensors, kind)
    factors = {name: floats[name] for name in SCREEN if name in tensors}
    for name in factors:
        del tensors[name]
    # One at a time: all floats of a network are several times its file.
    shapes, finite = {}, True
    for name, array in floats.items():
        shapes[name] = array.shape
        finite &= bool(np.isfinite(array).all())
    if ids is None or ids.ndim != 1 or shapes != expected:
        raise InvalidOption(
            f"{path} does not hold the tensors of network '{network.name}': train it again"
        )
    ids = ids.astype(np.int64)
    if not len(ids) or ids[0] < 0 or (np.diff(ids) <= 0).any():
        raise InvalidOption(f"{path} has draft ids out of order: train it again")
    if ids[-1] >= network.config.vocab_size or not finite:
        raise InvalidOption(f"{path} holds impossible numbers: train it again")
    head_preview = read_head_preview(factors, network.config.hidden_size, len(ids))
    if factors and head_preview is None:
        raise InvalidOption(
            f"{path} has a head preview that does not fit its network: fit one with "
            "`paceline train head-preview`"
        )
    parameters = floats if kind in _BLOCK_BYTES else dict(floats)
    return Trained(network, parameters, ids, metadata, head_preview)


@dataclass(frozen=True, slots=True)
class ShippedCard:
    """Card of one weights file: its size, network or rule, and metadata with JSON decoded.

    `draft_vocabulary` is None if the weights do not set it; `parameters` omits the head preview.
    """

    file: str
    bytes: int
    kind: str
    settings: Mapping[str, Any]
    parameters: int
    draft_vocabulary: int | None
    metadata: Mapping[str, Any]


def shipped_file(kind: str, model: str) -> Path | None:
    """Return the installed file of a network (or "ppd") for a target's fingerprint, or None."""
    paths = weight_files(f"{kind}-*.safetensors")
    return next((path for path in paths if read_metadata(path).get("model") == model), None)


def shipped_cards() -> list[ShippedCard]:
    """Return the cards of all installed drafters, by file name."""
    paths = sorted(weight_files("*.safetensors"), key=lambda path: path.name)
    return [read_card(path) for path in paths]


def read_card(path: Path) -> ShippedCard:
    """Read the card of one file from its header; raises InvalidOption if it does not fit."""
    with _opened(path, "trained weights", _RETRAIN) as file:
        metadata = {key: _decoded(text) for key, text in (file.metadata() or {}).items()}
        shapes = {name: file.get_slice(name).get_shape() for name in file.keys()}  # noqa: SIM118
        packed = {name for name in shapes if file.get_slice(name).get_dtype() == "U8"}
    kind = str(metadata.get("stored", "F16"))
    for name in packed if kind in _BLOCK_BYTES else ():
        shapes[name][-1] = shapes[name][-1] // _BLOCK_BYTES[kind] * _BLOCK
    network = metadata.pop("network", metadata.pop("kind", None))
    described = network if isinstance(network, dict) else {"network": network}
    if not isinstance(described.get("network"), str):
        raise InvalidOption(f"{path} does not say what it holds: train or fetch it again")
    ids = shapes.pop(_IDS, None)
    return ShippedCard(
        path.name,
        path.stat().st_size,
        described["network"],
        described.get("settings", {}),
        sum(math.prod(shape) for name, shape in shapes.items() if name not in SCREEN),
        None if ids is None else ids[0],
        metadata,
    )


def _decoded(text: str) -> Any:
    # JSON objects only; anything else stays text.
    try:
        value = json.loads(text)
    except ValueError:
        return text
    return value if isinstance(value, dict) else text
