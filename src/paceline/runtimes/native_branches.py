"""Trees of drafter networks by native operations: one step of any number of branches in one run.

Attention runs along paths, so that rows of all branches lie one behind the other, after the
context, and each sees those it stands on. A step costs one row per branch and token.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from paceline.networks.runner import Branch
from paceline.runtimes.native_network_cache import NetworkCache
from paceline.runtimes.native_network_programs import Chains, Input, Parts, Steps, bits
from paceline.runtimes.paged_cache import BLOCK, PagedCache
from paceline.types import LogitArray

Asked = tuple[Branch, Sequence[int]]


@dataclass(frozen=True, slots=True)
class State:
    """Of a branch.

    Attributes:
        value: float32 `[slots, ...]`, the network's.
        places: where its sequence's cache holds what its steps wrote, in order.
    """

    value: LogitArray
    places: tuple[int, ...] = ()


class Branches:
    """Steps of branches."""

    def __init__(self, parts: Parts, chains: Chains, threads: int) -> None:
        """Write the program.

        Args:
            parts: of the network.
            chains: where branches begin.
            threads: to run on.
        """
        network = parts[0]
        self._steps = Steps(parts, chains)
        self._threads = threads
        self._width = network.width
        self._attends = network.layers > 0
        self._behind = chains.behind

    def advance(self, asked: Sequence[Asked]) -> list[Branch]:
        """As `networks.runner.Runner.advance`; what is stored is counted in the caches."""
        inputs: dict[str, Input] = {
            "above": bits(np.stack([branch.state.value for branch, _ in asked])),
            "tokens": [token for _, tokens in asked for token in tokens],
        }
        places: list[tuple[int, ...]] = [()] * len(asked)
        if self._attends:
            places = [self._store(branch) for branch, _ in asked]
            inputs |= self._paths(asked, places)
        found = self._steps.run(len(asked), inputs, self._threads)
        return [
            Branch(branch.cache, branch, tokens, State(state, stored), row)
            for (branch, tokens), stored, state, row in zip(asked, places, *found, strict=True)
        ]

    def _store(self, branch: Branch) -> tuple[int, ...]:
        """Find room for the rows of a step.

        Returns:
            Places of all rows of the branch, those of the branches above it first.

        Raises:
            OutOfMemory: the cache is full.
        """
        cache: NetworkCache = branch.cache
        behind = self._behind + cache.branched
        cache.paged.reserve(behind + self._width)
        cache.branched += self._width
        begin = cache.paged.length + behind
        return (*branch.state.places, *range(begin, begin + self._width))

    def _paths(self, asked: Sequence[Asked], places: Sequence[tuple[int, ...]]) -> dict[str, Input]:
        """What rows see, as `Plan` in `native/path_attention.hpp` says."""
        rows: list[int] = []
        tables: list[int] = []
        singles: list[int] = []
        last: PagedCache | None = None
        table = 0
        for (branch, _), stored in zip(asked, places, strict=True):
            paged: PagedCache = branch.cache.paged
            if paged is not last:
                last, table = paged, len(tables)
                tables += paged.blocks
            # Rows that the first step wrote behind the context are seen by every branch.
            run, begin = paged.length + self._behind, len(singles)
            singles += stored
            for seen in range(len(stored) - self._width, len(stored)):
                slot = paged.blocks[stored[seen] // BLOCK] * BLOCK + stored[seen] % BLOCK
                rows += (run + seen, slot, table, run, begin)
        return {"rows": rows, "tables": tables, "singles": singles}
