"""The memory of a paged key-value cache: blocks of 32 tokens with reference counts.

A full block whose tokens are known stays after its last holder has gone, for the next sequence
that begins with them, until its memory is wanted or too many are kept: then the longest unused
goes first.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from paceline.errors import OutOfMemory
from paceline.runtimes.prefix_index import PrefixIndex

BLOCK = 32
"""Tokens per block, fixed by the attention kernel."""


Layout = Literal["tokens", "numbers", "pairs"]
"""How a block lies in memory; see `BlockPool`."""

Place = tuple[int, int]
"""A token's block, and its row there."""


class BlockPool:
    """The memory of all blocks, with reference counts.

    `memory` is `[2 * layers, blocks + 1, kv_heads, 32, head_dim]`; slice 2l holds the keys of layer
    l and slice 2l + 1 its values. By "tokens", a block holds the numbers of its first token, then
    those of the second, and so on. By "numbers", that is so for values; a block of keys holds the
    first number of its 32 tokens, then the second, and so on. By "pairs", it holds numbers 0 and 1
    of its 32 tokens, then 2 and 3, and so on; and a block of values, number after number, those of
    tokens 0 and 1, then of 2 and 3, and so on. Pages are only touched (and paid for) once used.
    """

    def __init__(
        self,
        layers: int,
        kv_heads: int,
        head_dim: int,
        blocks: int,
        *,
        keep: int | None = None,
        dtype: type[np.generic] = np.float32,
        layout: Layout = "tokens",
    ) -> None:
        """Reserve address space.

        Args:
            layers: of the model.
            kv_heads: per layer.
            head_dim: width of a head, with what coarse rows hold beside their numbers.
            blocks: how many sequences may hold in all; one more is made for `scratch`.
            keep: most blocks to keep for sequences to come; None sets no limit, and at 0 no
                sequence shares another's.
            dtype: of the numbers.
            layout: see above.
        """
        self.memory: npt.NDArray[Any] = np.zeros(
            (2 * layers, blocks + 1, kv_heads, BLOCK, head_dim), dtype=dtype
        )
        keys, values = self.memory[0::2], self.memory[1::2]
        self._keys = _turned(keys, 1 if layout == "numbers" else 2) if layout != "tokens" else keys
        self._values = _paired(values) if layout == "pairs" else values
        self._together = 2 if layout == "pairs" else 1
        self.scratch = blocks
        """A block that no sequence gets, for rows whose results nobody wants."""
        self.sharing = keep != 0
        self._keep = blocks if keep is None else keep
        self.index = PrefixIndex(BLOCK)
        self._references = [0] * blocks
        # Low ids first, so that a lightly used pool touches few pages.
        self._free = list(range(blocks - 1, -1, -1))
        self._idle: OrderedDict[int, None] = OrderedDict()  # known, without holders

    @property
    def block(self) -> int:
        """Tokens per block."""
        return BLOCK

    @property
    def blocks(self) -> int:
        """Blocks that sequences may hold, in all."""
        return len(self._references)

    @property
    def free(self) -> int:
        """Blocks nobody holds, whether or not their tokens are known."""
        return len(self._free) + len(self._idle)

    @property
    def bytes_per_token(self) -> int:
        """Memory that a cached token takes."""
        return int(self.memory.nbytes) // ((self.blocks + 1) * BLOCK)

    def take(self, count: int) -> list[int]:
        """Hand out `count` blocks.

        Raises:
            OutOfMemory: fewer are free; nothing is taken then.
        """
        if count > self.free:
            raise OutOfMemory(
                f"the key-value cache is full ({self.blocks * BLOCK} tokens): finish or "
                "cancel requests, or load the model with a larger kv_tokens"
            )
        blocks = [self._free.pop() if self._free else self._evict() for _ in range(count)]
        for block in blocks:
            self._references[block] = 1
        return blocks

    def share(self, blocks: Sequence[int]) -> None:
        """Count one more holder of each block."""
        for block in blocks:
            self._references[block] += 1
            self._idle.pop(block, None)

    def drop(self, blocks: Sequence[int]) -> None:
        """Count one holder less of each of a sequence's blocks; those without become free."""
        for block in reversed(blocks):  # the end of a chain is the first to be evicted
            self._references[block] -= 1
            if self._references[block] == 0:
                if block in self.index:
                    self._idle[block] = None
                else:
                    self._free.append(block)
        while len(self._idle) > self._keep:
            self._free.append(self._evict())

    def shared(self, block: int) -> bool:
        """Whether more than one holder reads this block."""
        return self._references[block] > 1

    def _evict(self) -> int:
        block, _ = self._idle.popitem(last=False)
        self.index.remove(block)
        return block

    def copy(self, source: int, destination: int) -> None:
        """Copy the keys and values of a block in all layers."""
        self.memory[:, destination] = self.memory[:, source]

    def move(self, sources: Sequence[Place], destinations: Sequence[Place]) -> None:
        """Move single tokens in all layers, one after the other."""
        for old, new in zip(sources, destinations, strict=True):
            for to, at in zip(self.token(*new), self.token(*old), strict=True):
                to[:] = at

    def token(self, block: int, row: int) -> tuple[npt.NDArray[Any], npt.NDArray[Any]]:
        """Keys and values of a token in all layers, `[layers, kv_heads, head_dim]` each (or that
        with pairs apart): views that may be written to."""
        line, odd = divmod(row, self._together)
        values = self._values[:, block, :, line]
        return self._keys[:, block, :, row], values[..., odd] if self._together > 1 else values


def _turned(keys: npt.NDArray[Any], together: int) -> npt.NDArray[Any]:
    """`[layers, blocks, kv_heads, 32, ...]` of keys whose numbers lie so many at a time."""
    parts = keys.reshape(*keys.shape[:3], keys.shape[4] // together, BLOCK, together)
    return parts.swapaxes(3, 4)


def _paired(values: npt.NDArray[Any]) -> npt.NDArray[Any]:
    """`[layers, blocks, kv_heads, 16, head_dim, 2]` of values whose tokens lie two at a time."""
    return values.reshape(*values.shape[:3], BLOCK // 2, values.shape[4], 2)
