"""What native runners keep of a sequence."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from paceline.native.library import Kept, has_pairs
from paceline.networks.base import Network
from paceline.networks.runner import Tail
from paceline.runtimes.block_pool import BlockPool
from paceline.runtimes.paged_cache import BLOCK, PagedCache


def pool_for(network: Network, tokens: int, precision: str) -> BlockPool:
    """The memory of a network's keys and values; where its matrices are coarse, these are too.

    Args:
        network: whose layers attend.
        tokens: of all sequences.
        precision: of its matrices, "fp32" or "int8".

    Raises:
        MemoryError: there is none.
    """
    shape, paired = network.geometry, precision != "fp32" and has_pairs()
    return BlockPool(
        max(network.layers, 1),
        shape.kv_heads,
        shape.head_dim,
        tokens // BLOCK,
        keep=0,
        dtype=np.uint16 if paired else np.float32,
        layout="pairs" if paired else "numbers",
    )


def kept_in(pool: BlockPool) -> Kept:
    """How such a pool keeps them."""
    return "bf16" if pool.memory.dtype == np.uint16 else "fp32"


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
