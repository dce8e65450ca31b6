"""The block table of one sequence: blocks shared with others until it writes to them.

Plain numpy, so that it can be tested without the runtime that reads and writes the memory.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from paceline.runtimes.block_pool import BLOCK as BLOCK
from paceline.runtimes.block_pool import BlockPool as BlockPool
from paceline.runtimes.block_pool import Place


@dataclass(eq=False)
class PagedCache:
    """Block table of one sequence.

    Attributes:
        pool: where the blocks live.
        blocks: ids, in order of positions.
        length: cached tokens.
        places: between a forward and its `keep`, where attention stored each drafted node: its
            position in this table. Empty where branches are kept apart.
        branches: between a forward and its `keep`, one entry per root-to-leaf path: the nodes,
            and the private blocks that hold them (None: the sequence's own blocks do).
    """

    pool: BlockPool
    blocks: list[int] = field(default_factory=list)
    length: int = 0
    places: list[int] = field(default_factory=list)
    branches: list[tuple[tuple[int, ...], list[int] | None]] = field(default_factory=list)

    def share(self, tokens: Sequence[int]) -> None:
        """Go on from the full blocks that are known to hold the head of `tokens`.

        Of these the cache must hold the first already; it changes if more are known.
        """
        found = self.pool.index.find(tokens) if self.pool.sharing else []
        if len(found) * BLOCK > self.length:
            self.pool.share(found)
            self.pool.drop(self.blocks[: len(found)])
            self.blocks[: len(found)] = found
            self.length = len(found) * BLOCK

    def publish(self, tokens: Sequence[int]) -> None:
        """Let others begin with the full blocks of this cache, whose tokens are `tokens`.

        Either may be longer than the other; what both have must agree.
        """
        if self.pool.sharing:
            full = min(self.length, len(tokens)) // BLOCK
            self.pool.index.add(tokens[: full * BLOCK], self.blocks[:full])

    def needed(self, tokens: int) -> int:
        """Blocks that `reserve` would take."""
        return self._missing(tokens) + len(self._to_copy())

    def reserve(self, tokens: int) -> None:
        """Make the next `tokens` positions writable by this sequence alone.

        Raises:
            OutOfMemory: the pool is full; the cache is unchanged then.
        """
        copied = self._to_copy()
        missing = self._missing(tokens)
        if copied or missing:
            fresh = self.pool.take(missing + len(copied))
            for index in copied:
                block = fresh.pop()
                self.pool.copy(self.blocks[index], block)
                self.pool.drop([self.blocks[index]])
                self.blocks[index] = block
            self.blocks += fresh
        for block in self.blocks[self.length // BLOCK :]:
            self.pool.index.remove(block)  # what it holds is about to change

    def _missing(self, tokens: int) -> int:
        """Blocks that the next `tokens` positions lack."""
        return max(-(-(self.length + tokens) // BLOCK) - len(self.blocks), 0)

    def _to_copy(self) -> list[int]:
        """Places in the block table that this sequence would write to and others read."""
        first = self.length // BLOCK
        return [i for i in range(first, len(self.blocks)) if self.pool.shared(self.blocks[i])]

    def branch(self, nodes: tuple[int, ...], tokens: int) -> list[int]:
        """A block table for another continuation of the cached prefix.

        Full blocks are shared; the last, partial one is copied. `tokens` positions behind the
        prefix are writable.
        """
        first = self.length // BLOCK
        private = self.pool.take(-(-(self.length + tokens) // BLOCK) - first)
        if self.length % BLOCK:
            self.pool.copy(self.blocks[first], private[0])
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
        """Drop all that was drafted."""
        self.places = []
        for _, private in self.branches:
            if private is not None:
                self.pool.drop(private)
        self.branches.clear()

    def move(self, sources: Sequence[int], destination: int) -> None:
        """Move the rows at ascending positions `sources` to those from `destination` on."""

        def place(position: int) -> Place:
            return self.blocks[position // BLOCK], position % BLOCK

        moves = [(s, destination + i) for i, s in enumerate(sources) if s != destination + i]
        if moves:
            self.pool.move([place(old) for old, _ in moves], [place(new) for _, new in moves])

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
