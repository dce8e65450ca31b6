"""Writer of safetensors files."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import numpy as np
from safetensors import SafetensorError
from safetensors.numpy import save_file

from paceline.errors import InvalidOption
from paceline.models.whole_file import whole_file


def write_tensors(path: Path, tensors: Mapping[str, np.ndarray], metadata: dict[str, str]) -> None:
    """Write a safetensors file atomically; raises InvalidOption if it cannot be written."""
    rows = {name: np.ascontiguousarray(array) for name, array in tensors.items()}  # as is written
    try:
        with whole_file(path) as part:
            save_file(rows, part, metadata)
    except (OSError, SafetensorError) as error:  # the latter wraps the system's while writing
        raise InvalidOption(f"cannot write {path} ({error}): choose another --out") from error
