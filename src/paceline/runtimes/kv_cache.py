"""Paged key-value cache: blocks of 32 tokens with reference counts, and prefix sharing.

A full block with known tokens stays after its last holder, for later sequences with that prefix,
until its memory is needed; the least recently used goes first.
"""

from __future__ import annotations

import math
from collections import Counter, OrderedDict
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from hashlib import blake2b
from itertools import takewhile
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from paceline.core.pages import advise
from paceline.core.target import LEAVING, SINKS, goes_back, room_of, whole
from paceline.errors import OutOfMemory
from paceline.models.config import ModelConfig
from paceline.runtimes.states import (
    LEAST_SLOTS,
    RECORD_BYTES,
    SequenceState,
    StatePool,
    StateShape,
)


class PrefixIndex:
    """Known full blocks, by names that stand for all tokens up to their end.

    Attributes:
        blocks: ids by name.
        states: checkpoints hang on blocks that are known.
    """

    def __init__(self, block: int) -> None:
        self._size = block
        self.states: StatePool | None = None
        self.blocks: dict[bytes, int] = {}
        self._names: dict[int, bytes] = {}

    def __contains__(self, block: int) -> bool:
        return block in self._names

    def names(self, tokens: Sequence[int], window: int = 0) -> list[bytes]:
        """Return the names of the full blocks of a text.

        Of an endless text those from which some had left have the window in their names.
        """
        held, name, out = np.array(tokens, dtype=np.int64), b"", []
        for end in range(self._size, len(held) + 1, self._size):
            if window and end == whole(window) + self._size:
                name += window.to_bytes(8)
            part = held[end - self._size : end].tobytes()
            name = blake2b(name + part, digest_size=16).digest()
            out.append(name)
        return out

    def find(self, names: Sequence[bytes]) -> list[int]:
        """Return ids of the known blocks of these names, up to the first that is unknown."""
        return [self.blocks[name] for name in takewhile(self.blocks.__contains__, names)]

    def add(self, names: Sequence[bytes], blocks: Sequence[int]) -> None:
        """Register blocks; existing entries stay."""
        for name, block in zip(names, blocks, strict=False):
            if name not in self.blocks:
                self.remove(block)
                self.blocks[name], self._names[block] = block, name

    def remove(self, block: int) -> None:
        name = self._names.pop(block, None)
        if name is not None:
            del self.blocks[name]
            if self.states is not None:
                self.states.forget(block)


# Bytes of the machine's memory that prefixes beyond the floor leave free.
SPARED = 2**30

# Tokens per block, and keys that are summed together: fixed by the attention kernel.
BLOCK = 32
_FIRST = 1 << 21  # bytes of a slice in small pages, which is one large one
CHUNK = 128


# Tokens between checkpoints of a long prefix, and those at its end that the next turn of a
# conversation may write otherwise.
_APART = 2048
_TURN = 16

# Block of a token, and its row in there.
Place = tuple[int, int]


def free_memory() -> int:
    """Return the bytes that the machine has left; 0 where it does not say."""
    with suppress(OSError, ValueError):
        lines = Path("/proc/meminfo").read_text().splitlines()
        found = [line.split()[1] for line in lines if line.startswith("MemAvailable:")]
        return int(found[0]) * 1024 if found else 0
    return 0


def cache_bytes(config: ModelConfig, tokens: int, dtype: type[np.generic]) -> int:
    """Return the most bytes of a model's cache of so many tokens, states included."""
    size = sum(2 * math.prod(shape) for shape in config.kv_shapes) * np.dtype(dtype).itemsize
    size, state = tokens * size, StateShape.of(config)
    if state is not None:
        size += 4 * state.size * _slots(state, size, tokens // BLOCK)
    return size


def _slots(state: StateShape, size: int, blocks: int) -> int:
    # Of states, which may take as much as the `size` of keys and values.
    return min(max(size // (4 * state.size), LEAST_SLOTS), blocks)


class Slab:
    """Keys and values of layers of one shape, in all blocks.

    `memory` is `[2 * layers, blocks, kv_heads, 32 * head_dim]`; slice 2l holds the keys of layer l
    and slice 2l + 1 its values. Values lie token after token. Keys are transposed: the first number
    of all 32 tokens, then the second. Pages take memory on first use.
    """

    def __init__(
        self, layers: int, kv_heads: int, head_dim: int, blocks: int, dtype: type[np.generic]
    ) -> None:
        self.memory: npt.NDArray[Any] = np.zeros(
            (2 * layers, blocks, kv_heads, BLOCK * head_dim), dtype=dtype
        )
        # The first blocks are of whoever is alone: a large page a slice is more than a text takes.
        for each in self.memory:
            advise(each.ravel()[: _FIRST // each.itemsize], "small")
        self._keys = self.memory[0::2].reshape(layers, blocks, kv_heads, head_dim, BLOCK)
        self._values = self.memory[1::2].reshape(layers, blocks, kv_heads, BLOCK, head_dim)

    def token(self, block: int, row: int) -> tuple[npt.NDArray[Any], npt.NDArray[Any]]:
        """Return writable views of a token's keys and values, `[layers, kv_heads, head_dim]`."""
        return self._keys[:, block, :, :, row], self._values[:, block, :, row]


class BlockPool:
    """Memory of all blocks, with reference counts: a `Slab` for each shape of layers."""

    def __init__(
        self,
        layers: int,
        kv_heads: int,
        head_dim: int,
        blocks: int,
        *,
        keep: int | None = None,
        dtype: type[np.generic] = np.float32,
        state: StateShape | None = None,
        shapes: Sequence[tuple[int, int]] = (),
    ) -> None:
        """Reserve address space; for states as much again as for keys and values.

        Args:
            layers: of the model.
            kv_heads: per layer.
            head_dim: width of a head.
            blocks: for sequences.
            keep: blocks retained for prefix sharing where the machine is short of memory, while
                others would take new pages; None retains all, 0 shares nothing.
            dtype: of the numbers.
            state: of a sequence in recurrent layers, if there are any.
            shapes: `kv_heads` and `head_dim` of each layer, where they differ.
        """
        own = list(shapes) or [(kv_heads, head_dim)] * layers
        counts = Counter(own)
        slabs = {each: Slab(count, *each, blocks, dtype) for each, count in counts.items()}
        self.slabs = tuple(slabs.values())
        # Of each layer, its slab and its place there.
        self._places = [(slabs[each], own[:i].count(each)) for i, each in enumerate(own)]
        self.dtype = np.dtype(dtype)
        self.sharing = keep != 0
        self._keep = blocks if keep is None else keep
        self.index = PrefixIndex(BLOCK)
        self.states: StatePool | None = None
        if state is not None:
            self.states = StatePool(state, _slots(state, self._bytes, blocks))
            self.index.states = self.states
        self._references = [0] * blocks
        # Low ids first, so that a lightly used pool touches few pages.
        self._free = list(range(blocks - 1, -1, -1))
        self._idle: OrderedDict[int, None] = OrderedDict()  # known, without holders
        self._used = 0  # blocks below have taken memory, which is never given back

    @property
    def block(self) -> int:
        return BLOCK

    @property
    def blocks(self) -> int:
        return len(self._references)

    @property
    def free(self) -> int:
        """Blocks without holder, retained ones included."""
        return len(self._free) + len(self._idle)

    @property
    def sequences(self) -> int | None:
        """Most sequences whose states fit beside one another; None for any number."""
        return None if self.states is None else self.states.sequences

    @property
    def nodes(self) -> int | None:
        """Most rows with records in a forward; None for any number."""
        if self.states is None:
            return None
        return max(1, RECORD_BYTES // (4 * self.states.shape.record_size))

    @property
    def bytes_per_token(self) -> int:
        """Memory of a cached token."""
        return self._bytes // (self.blocks * BLOCK)

    @property
    def _bytes(self) -> int:
        return sum(int(slab.memory.nbytes) for slab in self.slabs)

    def layer(self, index: int) -> npt.NDArray[Any]:
        """Return keys and values of a layer, `[2, blocks, kv_heads, 32 * head_dim]`."""
        slab, place = self._places[index]
        return slab.memory[2 * place : 2 * place + 2]

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
        blocks = [self._one() for _ in range(count)]
        for block in blocks:
            self._references[block] = 1
        return blocks

    def share(self, blocks: Sequence[int]) -> None:
        """Add a holder to each block."""
        for block in blocks:
            self._references[block] += 1
            self._idle.pop(block, None)

    def drop(self, blocks: Sequence[int]) -> None:
        """Remove a holder from each block; blocks without holder become free."""
        for block in reversed(blocks):  # the end of a chain is the first to be evicted
            self._references[block] -= 1
            if self._references[block] == 0:
                if block in self.index:
                    self._idle[block] = None
                else:
                    self._free.append(block)

    def shared(self, block: int) -> bool:
        return self._references[block] > 1

    def _one(self) -> int:
        # Memory that was used before, new memory where there is plenty, or that of an old prefix.
        if not self._free:
            return self._evict()
        block = self._free[-1]
        if block >= self._used:
            if len(self._idle) > self._keep and free_memory() < SPARED:
                return self._evict()
            self._used = block + 1
        return self._free.pop()

    def _evict(self) -> int:
        block, _ = self._idle.popitem(last=False)
        self.index.remove(block)
        return block

    def copy(self, source: int, destination: int) -> None:
        """Copy the keys and values of a block in all layers."""
        for slab in self.slabs:
            slab.memory[:, destination] = slab.memory[:, source]

    def move(self, sources: Sequence[Place], destinations: Sequence[Place]) -> None:
        """Move single tokens in all layers, in order."""
        for old, new in zip(sources, destinations, strict=True):
            for slab in self.slabs:
                for to, at in zip(slab.token(*new), slab.token(*old), strict=True):
                    to[:] = at


@dataclass(eq=False)
class PagedCache:
    """Block table of one sequence.

    Attributes:
        pool: memory of the blocks.
        blocks: ids in order of positions.
        length: cached tokens.
        places: between a forward and its `keep`: position in this table of each drafted node.
        state: that of recurrent layers, if there are any.
        marks: lengths at which later sequences want to find it.
        memory: what an encoder wrote for it, a cache of another pool; released with it.
        window: of an endless text, how many tokens it keeps behind the first ones; 0 for all.
        gone: how many have left it, which `length` counts all the same.
    """

    pool: BlockPool
    blocks: list[int] = field(default_factory=list)
    length: int = 0
    places: list[int] = field(default_factory=list)
    state: SequenceState | None = None
    marks: set[int] = field(default_factory=set)
    memory: PagedCache | None = None
    window: int = 0
    gone: int = 0

    @property
    def _sharing(self) -> bool:
        # Keys and values of a text with a memory are of no other sound.
        return self.pool.sharing and self.memory is None

    @property
    def rows(self) -> int:
        """Tokens that are there, at ascending places."""
        return self.length - self.gone

    def read(self, layer: int, every: int = 1) -> npt.NDArray[np.float32]:
        """Copy keys and values of every so many tokens, `[tokens, 2, kv_heads, head_dim]`."""
        keys, values = self.pool.layer(layer)[:, self.blocks]
        shape = len(self.blocks) * BLOCK, keys.shape[1], -1
        keys = keys.reshape(*keys.shape[:2], -1, BLOCK).transpose(0, 3, 1, 2).reshape(shape)
        values = values.reshape(*values.shape[:2], BLOCK, -1).swapaxes(1, 2).reshape(shape)
        return np.stack([keys, values], axis=1)[: self.rows : every].astype(np.float32)

    def share(self, tokens: Sequence[int]) -> None:
        """Extend an empty or shared cache by the known full blocks of a prefix of `tokens`.

        With a state they end at a checkpoint. One is wanted where known blocks end, and near the
        end of `tokens`.
        """
        if self.gone:
            return
        found, gone = self._known(tokens) if self._sharing else ([], 0)
        states = self.pool.states
        if states is not None:
            near = max(0, len(tokens) - _TURN) // BLOCK
            self.marks |= {BLOCK * each for each in (len(found), near)} if self._sharing else set()
            found = found[: states.deepest(found)]
        if gone + len(found) * BLOCK > self.length:
            self.pool.share(found)
            self.pool.drop(self.blocks[: len(found)])
            self.blocks[: len(found)] = found
            self.gone, self.length = gone, gone + len(found) * BLOCK
            if states is not None and self.state is not None:
                self.state.adopt(self.length, states.saved(found[-1]))

    def _known(self, tokens: Sequence[int]) -> tuple[list[int], int]:
        # Known blocks of the longest beginning of a text, and how many tokens have left it.
        index = self.pool.index
        names = index.names(tokens, self.window)
        found, gone, run = index.find(names), 0, 0
        if not self.window:
            return found, gone
        found = found[: whole(self.window) // BLOCK]
        for end, name in enumerate(names, 1):
            run = run + 1 if name in index.blocks else 0
            left = _leaves(end * BLOCK, self.window)
            first, sinks = (SINKS + left) // BLOCK, _sinks(names, left)
            if left and run >= end - first and sinks in index.blocks:
                found, gone = [index.blocks[each] for each in (sinks, *names[first:end])], left
        return found, gone

    def publish(self, tokens: Sequence[int], ended: bool = False) -> None:
        """Register the full blocks of this cache, whose tokens are `tokens`, for prefix sharing.

        Of a text that has lost tokens only once it has ended: those that leave later are in no use.
        """
        if not self._sharing or (self.gone and not ended):
            return
        full = (min(self.length, len(tokens)) - self.gone) // BLOCK
        names = self.pool.index.names(tokens[: self.gone + full * BLOCK], self.window)
        if self.gone:
            names = [_sinks(names, self.gone), *names[(SINKS + self.gone) // BLOCK :]]
        self.pool.index.add(names, self.blocks[:full])
        states = self.pool.states
        if states is None or self.state is None:
            return
        at, slot = self.state.border
        if 0 < at <= full * BLOCK and (ended or at in self.marks or at % _APART == 0):
            states.save(self.pool.index.find(names[: at // BLOCK])[-1], slot)

    def mark(self, length: int) -> None:
        """Note that later sequences want to go on from there: with a state, from a checkpoint."""
        if self.state is not None:
            self.marks.add(length)

    def unmarked(self, tokens: int) -> int:
        """Return how many of the next `tokens` positions end before one that wants a checkpoint."""
        if self.state is None:
            return tokens
        begin, end = self.length, self.length + tokens
        marks = [*self.marks, (begin // _APART + 1) * _APART]
        return min((each for each in marks if begin < each < end), default=end) - begin

    def needed(self, tokens: int) -> int:
        """Return the number of blocks that `reserve` would take."""
        return self._missing(tokens) + len(self._to_copy())

    def reserve(self, tokens: int) -> None:
        """Make the next `tokens` positions writable by this sequence alone (copy on write).

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
        for block in self.blocks[self.rows // BLOCK :]:
            self.pool.index.remove(block)  # what it holds is about to change

    def _missing(self, tokens: int) -> int:
        """Blocks that the next `tokens` positions lack."""
        # What leaves first may be held by others, and its sinks take a block while they are read.
        sinks = bool(self.window and not room_of(self))
        return max(-(-(self.rows + tokens) // BLOCK) - len(self.blocks), 0) + sinks

    def _to_copy(self) -> list[int]:
        first = self.rows // BLOCK
        return [i for i in range(first, len(self.blocks)) if self.pool.shared(self.blocks[i])]

    def discard(self) -> None:
        """Forget drafted nodes."""
        self.places = []
        if self.state is not None:
            self.state.discard()

    def move(self, sources: Sequence[int], destination: int) -> None:
        """Move rows at ascending positions `sources` to those from `destination` on."""

        def place(position: int) -> Place:
            return self.blocks[position // BLOCK], position % BLOCK

        moves = [(s, destination + i) for i, s in enumerate(sources) if s != destination + i]
        if moves:
            self.pool.move([place(old) for old, _ in moves], [place(new) for _, new in moves])

    def truncate(self, length: int, hold: bool = False) -> None:
        """Drop positions from `length` on; release unused blocks, or hold them with all rows.

        A state may only go back further: see `Target.truncate`.
        """
        self.discard()
        if self.state is not None and length < self.length:
            length = self.state.truncate(length)
        if goes_back(self, length):
            self.gone = length = 0  # what has left is wanted again: all of it
        used = len(self.blocks) if hold else -(-(length - self.gone) // BLOCK)
        self.pool.drop(self.blocks[used:])
        del self.blocks[used:]
        self.length = length

    def leave(self) -> None:
        """Release the `LEAVING` tokens behind the first `SINKS`."""
        self.discard()
        first, end = SINKS // BLOCK, (SINKS + LEAVING) // BLOCK
        self.pool.drop(self.blocks[first:end])
        del self.blocks[first:end]
        self.gone += LEAVING

    def renew(self) -> None:
        """Put the block behind the rows, which a forward has just written, before all others."""
        self.discard()
        self.pool.drop(self.blocks[:1])
        self.blocks[0] = self.blocks.pop(self.rows // BLOCK)

    def drop_first(self, blocks: int) -> None:
        """Release so many blocks, whose rows are gone then: others move up by their places."""
        self.discard()
        self.pool.drop(self.blocks[:blocks])
        del self.blocks[:blocks]
        self.length -= blocks * BLOCK

    def fork(self) -> PagedCache:
        """Return a second cache over the same blocks, copied on write."""
        used = self.blocks[: -(-self.rows // BLOCK)]
        self.pool.share(used)
        state = None if self.state is None else self.state.fork()
        memory = None if self.memory is None else self.memory.fork()
        kept = state, set[int](), memory, self.window, self.gone
        return PagedCache(self.pool, list(used), self.length, [], *kept)

    def release(self) -> None:
        self.truncate(0)
        if self.state is not None:
            self.state.release()
        if self.memory is not None:
            self.memory.release()


def _sinks(names: Sequence[bytes], gone: int) -> bytes:
    # Name of the block of the first tokens, in front of what is there.
    return b"%s before %d" % (names[0], gone)


def _leaves(length: int, window: int) -> int:
    # How many tokens have left an endless text once so many are read.
    return max(0, -(-(length - whole(window)) // LEAVING)) * LEAVING
