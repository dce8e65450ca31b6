"""A way to run forwards on the CPU: there is our own, and the plugin's."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Protocol

from paceline.core.types import LogitArray
from paceline.runtimes.cpu.batch import Batch
from paceline.runtimes.cpu.profile import Counted
from paceline.runtimes.kv_cache import BlockPool, PagedCache


class Outcome(Protocol):
    """What a forward gave."""

    seconds: float
    """What it took, inputs and outputs left out."""

    def output(self, name: str) -> LogitArray:
        """float32 `[n, ...]`, a view that the next forward overwrites: "logits" and "hidden" of the
        batch's logit rows, "features" of its feature rows."""
        ...

    def argmax(self) -> list[int]:
        """By logit row, see `Output.argmax`; empty if nobody asks, or it is not known."""
        ...


class Steps(ABC):
    """Keeps keys and values, lays rows out, and runs them."""

    name: str
    """"paths" (our own) or "plugin"."""
    row_buckets: tuple[int, ...]
    """See `types.Capabilities`."""
    pool: BlockPool
    """Memory for keys and values."""

    @abstractmethod
    def start(self, extra: LogitArray) -> None:
        """Make ready, with embeddings behind those of the vocabulary; may be called again."""

    @abstractmethod
    def complete(self) -> None:
        """Make everything ready that use would bring about."""

    @abstractmethod
    def batch(self) -> Batch:
        """The inputs of a forward, to be filled."""

    def pad(self, batch: Batch, rows: int) -> None:
        """Add idle rows where that is faster, as for `rows` rows at least."""

    @abstractmethod
    def run(self, batch: Batch) -> Outcome:
        """Run a forward."""

    @abstractmethod
    def counted(self, batch: Batch, runs: int) -> Counted:
        """Repeat a forward, and say what its parts take."""

    @abstractmethod
    def keep(self, cache: PagedCache, pending: int, path: Sequence[int]) -> None:
        """Commit the pending tokens and a path of the last forward's draft."""
