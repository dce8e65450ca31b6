"""What files of Whispers have in common: fields one behind another, and tensors by their names."""

from __future__ import annotations

from abc import ABC, abstractmethod
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from paceline.core.types import LogitArray
from paceline.errors import ModelError
from paceline.models.gguf import dequantize
from paceline.models.quantised import Made


class SpeechFile(ABC):
    """Tensors of a file by the names of a Hugging Face checkpoint of Whisper.

    Attributes:
        config: of the model, in the words of a Whisper's `config.json`.
    """

    config: dict[str, Any]

    def __init__(self, path: Path) -> None:
        self.path = path
        try:
            self._raw: npt.NDArray[np.uint8] = np.memmap(path, dtype=np.uint8, mode="r")
        except (OSError, ValueError) as error:
            raise ModelError(f"cannot read {path} ({error}): download it again") from error
        self._at = 0  # what was taken

    @abstractmethod
    def __contains__(self, name: object) -> bool: ...

    @abstractmethod
    def shape(self, name: str) -> tuple[int, ...]: ...

    @abstractmethod
    def stored(self, name: str) -> tuple[str, npt.NDArray[np.uint8] | Made]:
        """Return the type of a tensor, and the blocks of its rows."""

    def read(self, name: str, rows: slice = slice(None)) -> LogitArray:
        """Return a tensor; some `rows` alone are a matrix."""
        kind, blocks = self.stored(name)
        values = dequantize(kind, np.ascontiguousarray(blocks[rows]))
        shape = self.shape(name)
        return values.reshape(shape if rows == slice(None) else (-1, shape[-1]))

    def _take(self, size: int) -> npt.NDArray[np.uint8]:
        begin = self._at
        self._at += size
        if size < 0 or self._at > len(self._raw):
            raise ModelError(f"{self.path} is cut short: download it again")
        return self._raw[begin : self._at]

    def _lacks(self, name: str) -> ModelError:
        return ModelError(f"{self.path} has no tensor {name}: download the model again")

    def _damaged(self, at: str) -> ModelError:
        return ModelError(f"{self.path} is damaged at {at[:60]}: download it again")
