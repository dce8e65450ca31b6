"""Rows of one ragged forward, as far as they do not depend on how attention finds its keys."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy.typing as npt

from paceline.core.types import TokenTree
from paceline.runtimes.kv_cache import PagedCache

Input = int | list[int] | npt.NDArray[Any]
"""What an input is filled from."""


class Shape(NamedTuple):
    """Rows of one forward, padding included."""

    dense: int
    attention: int


ROW_BUCKETS = (1, 2, 3, 4, 5, 6, 8, 10, 12, 16, 24, 32, 48, 64)
"""Dense rows per forward, padded up to the next of these; larger forwards are not padded."""


def bucket(rows: int) -> int:
    """The padded number of rows."""
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
        """Add rows for `tokens` behind what is cached, and for `draft` behind them.

        Returns:
            The first row; the others follow in order, the draft's nodes as they are numbered.

        Raises:
            OutOfMemory: the cache cannot hold them.
        """

    @abstractmethod
    def inputs(self) -> dict[str, Input]:
        """Inputs by name."""

    def common(self) -> dict[str, Input]:
        """Those that there always are: int32."""
        return {
            "input_ids": self.ids,
            "logit_rows": self.logit_rows,
            "feature_rows": self.feature_rows,
        }
