"""A table on paged memory: contexts are read back from the blocks, so what they hold counts.

Rows are written and block tables are made as in the CPU runtime's layout "exact". A block that was
shared wrongly, given away too early or written by two shows in the logits.
"""

from __future__ import annotations

from collections.abc import Sequence as List

import numpy as np

from paceline.core import tree as trees
from paceline.core.target import Output, Pass
from paceline.core.types import Capabilities, LogitArray
from paceline.proof.tabular import LogitsOf
from paceline.runtimes.kv_cache import BLOCK, BlockPool, PagedCache


class PagedTable:
    """A target over a table; the only key of a token, and its features, are its id."""

    def __init__(
        self,
        logits: LogitsOf,
        vocabulary: int,
        blocks: int,
        *,
        context: int | None = None,
        keep: int | None = None,
    ) -> None:
        self.memory = BlockPool(1, 1, 1, blocks, keep=keep)
        self.capabilities = Capabilities(
            runtime="paged-table",
            device="cpu",
            precision="fp32",
            vocab_size=vocabulary,
            max_context=context or blocks * BLOCK,
            hidden_size=1,
            hidden_states=True,
            bit_exact=True,
            layout="exact",
        )
        self.passes: list[List[Pass]] = []
        """Of every forward."""
        self._logits = logits

    def warm_up(self) -> None:
        """Nothing to do."""

    def open(self) -> PagedCache:
        return PagedCache(self.memory)

    def prefill(
        self, cache: PagedCache, tokens: List[int], features: bool = False
    ) -> LogitArray | None:
        if tokens:
            self.forward([Pass(cache, tokens)])
            self.keep(cache, len(tokens), ())
        return _features(tokens) if features else None

    def forward(self, passes: List[Pass]) -> list[Output]:
        self.passes.append(passes)
        tables = [self._write(each) for each in passes]  # all write before any reads
        return [self._look_up(each, table) for each, table in zip(passes, tables, strict=True)]

    def keep(self, cache: PagedCache, pending: int, path: List[int]) -> None:
        cache.adopt(pending, path)

    def truncate(self, cache: PagedCache, length: int) -> None:
        cache.truncate(length)

    def fork(self, cache: PagedCache) -> PagedCache:
        return cache.fork()

    def release(self, cache: PagedCache) -> None:
        cache.release()

    def _write(self, each: Pass) -> list[tuple[tuple[int, ...], list[int]]]:
        cache, count = each.cache, len(each.pending)
        cache.discard()
        draft = each.draft or trees.EMPTY
        paths = trees.leaf_paths(draft) or [()]
        cache.reserve(max(count + len(paths[0]), 2))
        cache.branches.append((paths[0], None))
        tables = [(paths[0], cache.blocks)]
        for path in paths[1:]:
            tables.append((path, cache.branch(path, count + len(path))))
        for path, blocks in tables:
            tokens = [*each.pending, *draft.tokens[list(path)].tolist()]
            for position, token in enumerate(tokens, start=cache.length):
                self.memory.memory[:, blocks[position // BLOCK], :, position % BLOCK] = token
        return tables

    def _look_up(self, each: Pass, tables: list[tuple[tuple[int, ...], list[int]]]) -> Output:
        end = each.cache.length + len(each.pending)
        rows = {-1: self._after(tables[0][1], end)}
        for path, blocks in tables:
            for depth, node in enumerate(path, start=1):
                rows[node] = self._after(blocks, end + depth)
        tokens = [*each.pending, *(each.draft or trees.EMPTY).tokens.tolist()]
        features = _features(tokens) if each.features else None
        return Output(np.stack([rows[node] for node in sorted(rows)]), None, features)

    def _after(self, blocks: list[int], length: int) -> np.ndarray:
        rows = self.memory.memory[0, blocks[: -(-length // BLOCK)], 0, :, 0]
        return self._logits(tuple(rows.astype(int).ravel()[:length].tolist()))


def _features(tokens: List[int]) -> LogitArray:
    return np.repeat(np.array(tokens, np.float32)[:, None], 4, axis=1)
