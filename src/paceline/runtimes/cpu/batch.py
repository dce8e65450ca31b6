"""Row layout of one ragged forward, as far as it does not depend on the attention kernel."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy.typing as npt

from paceline.core.types import TokenTree
from paceline.runtimes.kv_cache import PagedCache

Input = int | list[int] | npt.NDArray[Any]


class Shape(NamedTuple):
    """Row counts of one forward, padding included."""

    dense: int
    attention: int


# Dense rows are padded to the next of these; larger forwards are not padded.
ROW_BUCKETS = (1, 2, 3, 4, 5, 6, 8, 10, 12, 16, 24, 32, 48, 64)


def bucket(rows: int) -> int:
    return next((size for size in ROW_BUCKETS if size >= rows), rows)


class Batch(ABC):
    """Inputs of one forward, filled pass by pass."""

    def __init__(self) -> None:
        self.ids: list[int] = []
        self.logit_rows: list[int] = []
        self.feature_rows: list[int] = []
        self.argmax = False  # whether somebody asks for the likeliest token by row

    @abstractmethod
    def add(self, cache: PagedCache, tokens: Sequence[int], draft: TokenTree) -> int:
        """Add rows of pending `tokens`, after the cached ones, and of `draft` after them.

        Returns:
            The first row; the others follow in order, the draft's nodes by number.

        Raises:
            OutOfMemory: the cache cannot hold them.
        """

    @abstractmethod
    def inputs(self) -> dict[str, Input]:
        """Return the inputs by name."""

    def common(self) -> dict[str, Input]:
        """Return the int32 inputs that every backend takes."""
        return {
            "input_ids": self.ids,
            "logit_rows": self.logit_rows,
            "feature_rows": self.feature_rows,
        }
