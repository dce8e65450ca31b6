"""Backend contract of the CPU runtime. Implementations: native kernels and the OpenVINO plugin."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Any, Protocol

import numpy.typing as npt

from paceline.core.types import LogitArray, TokenTree
from paceline.runtimes.cpu.profile import Counted
from paceline.runtimes.kv_cache import BlockPool, PagedCache

Input = int | list[int] | npt.NDArray[Any]

NO_ROOM = "no memory to load the model: free some, or load a smaller model or precision int8"


class Batch(ABC):
    """Inputs of one forward, filled pass by pass."""

    def __init__(self) -> None:
        self.ids: list[int] = []
        self.logit_rows: list[int] = []
        self.feature_rows: list[int] = []
        self.argmax = False  # some pass asks for the argmax by row

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


class Outcome(Protocol):
    """Outputs of one forward."""

    # Inference alone, without setting inputs and reading outputs.
    seconds: float

    def output(self, name: str) -> LogitArray:
        """Return float32 `[n, ...]`, a view that the next forward overwrites.

        "logits" and "hidden" are of the batch's logit rows, "features" of its feature rows.
        """
        ...

    def argmax(self) -> list[int]:
        """Return the argmax by logit row; empty if no pass asked for it or it is unknown."""
        ...


class Steps(ABC):
    """Backend of the target: owns the key-value blocks, lays rows out and runs forwards."""

    # "paths" (native kernels) or "plugin".
    name: str
    row_buckets: tuple[int, ...]
    pool: BlockPool

    @abstractmethod
    def start(self, extra: LogitArray) -> None:
        """Prepare for forwards, with extra embeddings after the vocabulary. May be called again."""

    @abstractmethod
    def complete(self) -> None:
        """Compile everything that use would compile later."""

    @abstractmethod
    def batch(self) -> Batch:
        """Return an empty batch."""

    def pad(self, batch: Batch, rows: int) -> None:
        """Add idle rows where that is faster, to the bucket of `rows` rows at least."""

    @abstractmethod
    def run(self, batch: Batch) -> Outcome: ...

    @abstractmethod
    def counted(self, batch: Batch, runs: int) -> Counted:
        """Repeat a forward and return the time of its parts."""

    @abstractmethod
    def keep(self, cache: PagedCache, pending: int, path: Sequence[int]) -> None:
        """Commit the pending tokens and an accepted path of the last forward's draft."""
