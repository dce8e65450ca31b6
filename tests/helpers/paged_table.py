"""A table on paged memory: contexts are read back from the blocks, so what they hold counts.

Rows are written and kept as on the CPU runtime. A block that was shared wrongly, given away too
early or written by two shows in the logits.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from paceline.core import tree as trees
from paceline.core.target import Output, Rows
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
            paged=True,
        )
        self.passes: list[Sequence[Rows]] = []
        """Of every forward."""
        self._logits = logits

    def warm_up(self) -> None:
        """Nothing to do."""

    def open(self) -> PagedCache:
        return PagedCache(self.memory)

    def prefill(
        self, cache: PagedCache, tokens: Sequence[int], features: bool = False
    ) -> LogitArray | None:
        if tokens:
            self.forward([Rows.draft(cache, tokens)])
            self.keep(cache, len(tokens), ())
        return _features(tokens) if features else None

    def forward(self, passes: Sequence[Rows]) -> list[Output]:
        self.passes.append(passes)
        for each in passes:  # all write before any reads
            self._write(each)
        return [self._look_up(each) for each in passes]

    def keep(self, cache: PagedCache, num_new: int, path: Sequence[int]) -> None:
        start = cache.length + num_new
        cache.move([cache.places[node] for node in path], start)
        cache.discard()
        cache.length = start + len(path)

    def truncate(self, cache: PagedCache, length: int) -> None:
        cache.truncate(length)

    def fork(self, cache: PagedCache) -> PagedCache:
        return cache.fork()

    def release(self, cache: PagedCache) -> None:
        cache.release()

    def _write(self, each: Rows) -> None:
        cache, draft = each.cache, each.tree or trees.EMPTY
        cache.discard()
        cache.reserve(each.num_new + len(draft))
        begin = cache.length + each.num_new
        cache.places = list(range(begin, begin + len(draft)))
        for position, token in enumerate(each.tokens, cache.length):
            for numbers in self.memory.slabs[0].token(
                cache.blocks[position // BLOCK], position % BLOCK
            ):
                numbers[:] = token

    def _look_up(self, each: Rows) -> Output:
        cache, draft = each.cache, each.tree or trees.EMPTY
        end = cache.length + each.num_new
        rows = [self._after(cache, range(end))]
        for node in range(len(draft)):
            path = [cache.places[above] for above in trees.path_to(draft, node)]
            rows.append(self._after(cache, [*range(end), *path]))
        tokens = each.tokens
        features = _features(tokens) if each.features else None
        return Output(np.stack(rows), None, features)

    def _after(self, cache: PagedCache, places: Sequence[int]) -> np.ndarray:
        keys = self.memory.slabs[0].memory[0, :, 0]
        context = (keys[cache.blocks[place // BLOCK], place % BLOCK] for place in places)
        return self._logits(tuple(map(int, context)))


def _features(tokens: Sequence[int]) -> LogitArray:
    return np.repeat(np.array(tokens, np.float32)[:, None], 4, axis=1)
