"""What native runners keep of a sequence."""

from __future__ import annotations

from dataclasses import dataclass

from paceline.networks.runner import Tail
from paceline.runtimes.paged_cache import PagedCache


@dataclass(eq=False, slots=True)
class NetworkCache:
    """Context rows of one sequence.

    Attributes:
        paged: keys and values of the network's layers.
        tail: the last tokens taken in.
        branched: rows of branches that are stored behind the context until the next draft.
    """

    paged: PagedCache
    tail: Tail
    branched: int = 0

    def prune(self) -> None:
        """Forget all branches, and give their blocks back."""
        if self.branched:
            self.paged.truncate(self.paged.length)
            self.branched = 0
