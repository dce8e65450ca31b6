"""Which full blocks hold which tokens, so that requests with a common beginning share them.

A block is found by the chain of blocks before it and its own tokens. The tokens themselves are the
key, not a digest of them: a block that is found holds what was asked for, always.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import count

_START = 0
"""Stands for the empty chain."""


class PrefixIndex:
    """Chains of full blocks by the tokens that they hold."""

    def __init__(self, block: int) -> None:
        """Know nothing yet; a full block holds `block` tokens."""
        self._size = block
        self._links: dict[tuple[int, tuple[int, ...]], tuple[int, int]] = {}
        self._keys: dict[int, tuple[int, tuple[int, ...]]] = {}
        # Numbers of links are never used twice: what hung on a removed block is not found again.
        self._numbers = count(_START + 1)

    def __contains__(self, block: int) -> bool:
        return block in self._keys

    def find(self, tokens: Sequence[int]) -> list[int]:
        """Ids of the blocks that hold `tokens` from the first on, as many as are known."""
        found: list[int] = []
        link = _START
        for part in self._parts(tokens):
            entry = self._links.get((link, part))
            if entry is None:
                break
            link, block = entry
            found.append(block)
        return found

    def add(self, tokens: Sequence[int], blocks: Sequence[int]) -> None:
        """Make known that `blocks` hold `tokens`; where others are known to, those stay."""
        link = _START
        for part, block in zip(self._parts(tokens), blocks, strict=False):
            key = (link, part)
            entry = self._links.get(key)
            if entry is None:
                self.remove(block)  # it may be known under a chain that has broken
                entry = self._links[key] = (next(self._numbers), block)
                self._keys[block] = key
            link = entry[0]

    def remove(self, block: int) -> None:
        """Forget a block; nothing happens if it is not known."""
        key = self._keys.pop(block, None)
        if key is not None:
            del self._links[key]

    def _parts(self, tokens: Sequence[int]) -> Iterator[tuple[int, ...]]:
        for end in range(self._size, len(tokens) + 1, self._size):
            yield tuple(tokens[end - self._size : end])
