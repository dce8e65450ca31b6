"""Export directory of another engine: contents, checks and writing."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from safetensors import SafetensorError
from safetensors.numpy import save_file

from paceline.errors import InvalidOption
from paceline.models.cache import write_atomically
from paceline.models.whole_file import whole_file

_TENSORS = "model.safetensors"
_CONFIG = "config.json"

Tensors = dict[str, npt.NDArray[Any]]


@dataclass(frozen=True, slots=True)
class Layout:
    """Files of an export directory.

    Attributes:
        depth: most tokens of one draft; None if unlimited.
        tensors: by the engine's names; float32, or int64 and bool where they map token ids.
        texts: other files by name.
    """

    method: str
    depth: int | None
    config: Mapping[str, Any]
    tensors: Tensors
    metadata: Mapping[str, str]
    texts: Mapping[str, str] = field(default_factory=dict)


def check_folder(out: Path, force: bool) -> None:
    """Refuse a directory with files that would be lost, or loaded beside the export.

    Raises:
        InvalidOption: it is not empty (without `force`), is a file, or cannot be read.
    """
    try:
        names = sorted(path.name for path in out.iterdir())
    except FileNotFoundError:
        return
    except OSError as error:
        raise _unwritable(out, error) from error
    if names and not force:
        raise InvalidOption(f"{out} is not empty: choose another --out, or write over it (--force)")
    foreign = [name for name in names if ".safetensors" in name and name != _TENSORS]
    if foreign:  # engines load whatever weights they find in the folder
        raise InvalidOption(f"{out} holds other weights, {foreign[0]}: choose another --out")


def write_layout(layout: Layout, out: Path, force: bool = False) -> None:
    """Write the directory, `config.json` last, so that an incomplete export does not load.

    Raises:
        InvalidOption: as for `check_folder`, or the directory cannot be written.
    """
    check_folder(out, force)
    tensors = {name: np.ascontiguousarray(array) for name, array in layout.tensors.items()}
    try:
        out.mkdir(parents=True, exist_ok=True)
        (out / _CONFIG).unlink(missing_ok=True)
        with whole_file(out / _TENSORS) as part:
            save_file(tensors, part, {**layout.metadata, "format": "pt"})
        for name, text in layout.texts.items():
            write_atomically(out / name, text)
        write_atomically(out / _CONFIG, json.dumps(layout.config, indent=2) + "\n")
    except (OSError, SafetensorError) as error:  # the latter wraps the system's while writing
        raise _unwritable(out, error) from error


def _unwritable(out: Path, error: Exception) -> InvalidOption:
    reason = getattr(error, "strerror", None) or str(error)
    return InvalidOption(
        f"cannot write to {out} ({reason}): free space there or choose another --out"
    )
