"""Backend contract of the CPU runtime. Implementations: native kernels and the OpenVINO plugin."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Protocol

from paceline.core.types import LogitArray
from paceline.runtimes.cpu.batch import Batch
from paceline.runtimes.cpu.profile import Counted
from paceline.runtimes.kv_cache import BlockPool, PagedCache


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
