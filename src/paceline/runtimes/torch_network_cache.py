"""What a drafter network knows of one sequence, on PyTorch."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from paceline.networks.runner import Tail
from paceline.runtimes.torch_cache import TorchCache


@dataclass(eq=False, slots=True)
class NetworkCache:
    """Context rows of one sequence.

    Attributes:
        rows: keys and values of the network's layers.
        tail: the last tokens taken in.
        drafted: draft rows behind the context that branches may see.
        left: rows that have left the cache, since no row to come sees so far back.
        target: keys and values that the target lends of the context, where they are read.
    """

    rows: TorchCache
    tail: Tail
    drafted: int = 0
    left: int = 0
    target: Tensor | None = None

    def slide(self, reach: int) -> None:
        """Drop rows out of sight for those to come, which see so far back; 0 is all.

        Only if more go than stay: then moving costs little in the long run.
        """
        stay = max(0, reach - 1)
        gone = self.rows.length - stay
        if reach and gone > stay:
            data = self.rows.data
            data[:, :, :, :stay] = data[:, :, :, gone : gone + stay]
            self.rows.length = stay
            self.left += gone
