"""Paged key-value memory: blocks of 32 tokens, shared between sequences until one writes.

Plain numpy, so that it can be tested without the runtime that reads and writes the memory.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from paceline.errors import OutOfMemory
from paceline.types import LogitArray

BLOCK = 32
"""Tokens per block, fixed by the attention kernel."""


class BlockPool:
    """The memory of all blocks, with reference counts.

    `memory` is float32 `[2 * layers, blocks, kv_heads, 32, head_dim]`; slice 2l holds the keys of
    layer l and slice 2l + 1 its values. Pages are only touched (and paid for) once used.
    """

    def __init__(self, layers: int, kv_heads: int, head_dim: int, blocks: int) -> None:
        """Reserve address space for `blocks` blocks."""
        self.memory: LogitArray = np.zeros(
            (2 * layers, blocks, kv_heads, BLOCK, head_dim), dtype=np.float32
        )
        self._references = np.zeros(blocks, dtype=np.int64)
        # Low ids first, so that a lightly used pool touches few pages.
        self._free = list(range(blocks - 1, -1, -1))

    @property
    def free(self) -> int:
        """Blocks nobody holds."""
        return len(self._free)

    def take(self, count: int) -> list[int]:
        """Hand out `count` blocks.

        Raises:
            OutOfMemory: fewer are free; nothing is taken then.
        """
        if count > len(self._free):
            raise OutOfMemory(
                f"the key-value cache is full ({len(self._references) * BLOCK} tokens): finish or "
                "cancel requests, or load the model with a larger kv_tokens"
            )
        blocks = [self._free.pop() for _ in range(count)]
        self._references[blocks] = 1
        return blocks

    def share(self, blocks: Sequence[int]) -> None:
        """Count one more holder of each block."""
        self._references[list(blocks)] += 1

    def drop(self, blocks: Sequence[int]) -> None:
        """Count one holder less; blocks without holders become free."""
        for block in blocks:
            self._references[block] -= 1
            if self._references[block] == 0:
                self._free.append(block)

    def shared(self, block: int) -> bool:
        """Whether more than one holder reads this block."""
        return bool(self._references[block] > 1)

    def copy(self, source: int, destination: int, tokens: int = BLOCK) -> None:
        """Copy the keys and values of a block's first `tokens` tokens in all layers."""
        self.memory[:, destination, :, :tokens] = self.memory[:, source, :, :tokens]


@dataclass(eq=False)
class PagedCache:
    """Block table of one sequence.

    Attributes:
        pool: where the blocks live.
        blocks: ids, in order of positions.
        length: cached tokens.
        branches: between a forward and its `keep`, one entry per root-to-leaf path: the nodes,
            and the private blocks that hold them (None: the sequence's own blocks do).
    """

    pool: BlockPool
    blocks: list[int] = field(default_factory=list)
    length: int = 0
    branches: list[tuple[tuple[int, ...], list[int] | None]] = field(default_factory=list)

    def reserve(self, tokens: int) -> None:
        """Make the next `tokens` positions writable by this sequence alone.

        Raises:
            OutOfMemory: the pool is full; the cache is unchanged then.
        """
        first = self.length // BLOCK
        missing = -(-(self.length + tokens) // BLOCK) - len(self.blocks)
        copied = [i for i in range(first, len(self.blocks)) if self.pool.shared(self.blocks[i])]
        fresh = self.pool.take(max(missing, 0) + len(copied))
        for index in copied:
            block = fresh.pop()
            self.pool.copy(self.blocks[index], block)
            self.pool.drop([self.blocks[index]])
            self.blocks[index] = block
        self.blocks += fresh

    def branch(self, nodes: tuple[int, ...], tokens: int) -> list[int]:
        """A block table for another continuation of the cached prefix.

        Full blocks are shared; the last, partial one is copied. `tokens` positions behind the
        prefix are writable.
        """
        first = self.length // BLOCK
        private = self.pool.take(-(-(self.length + tokens) // BLOCK) - first)
        if self.length % BLOCK:
            self.pool.copy(self.blocks[first], private[0], self.length % BLOCK)
        self.branches.append((nodes, private))
        return self.blocks[:first] + private

    def adopt(self, pending: int, path: Sequence[int]) -> None:
        """Keep the branch that starts with `path`, extend the prefix, drop the other branches."""
        kept = tuple(path)
        for index, (nodes, private) in enumerate(self.branches):
            if nodes[: len(kept)] == kept:
                if private is not None:
                    first = self.length // BLOCK
                    self.pool.drop(self.blocks[first:])
                    self.blocks[first:] = private
                    del self.branches[index]
                break
        else:
            raise ValueError(f"no branch of the last forward starts with {kept}")
        self.discard()
        self.length += pending + len(kept)

    def discard(self) -> None:
        """Drop all branches."""
        for _, private in self.branches:
            if private is not None:
                self.pool.drop(private)
        self.branches.clear()

    def move(self, sources: Sequence[int], destination: int) -> None:
        """Move the rows at positions `sources` to the positions from `destination` on."""

        def place(position: int) -> tuple[int, int]:
            return self.blocks[position // BLOCK], position % BLOCK

        moves = [(place(s), place(destination + i)) for i, s in enumerate(sources)]
        memory = self.pool.memory
        for (old_block, old_row), (block, row) in moves:
            memory[:, block, :, row] = memory[:, old_block, :, old_row]

    def truncate(self, length: int) -> None:
        """Forget positions from `length` on and give whole unused blocks back."""
        self.discard()
        used = -(-length // BLOCK)
        self.pool.drop(self.blocks[used:])
        del self.blocks[used:]
        self.length = length

    def fork(self) -> PagedCache:
        """A second cache over the same blocks; whoever writes first copies."""
        used = self.blocks[: -(-self.length // BLOCK)]
        self.pool.share(used)
        return PagedCache(self.pool, list(used), self.length)

    def release(self) -> None:
        """Give all blocks back."""
        self.truncate(0)
