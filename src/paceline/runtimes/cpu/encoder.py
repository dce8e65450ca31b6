"""An encoder as one native program, and the memories that it writes."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from paceline.core.types import IntArray, LogitArray
from paceline.errors import OutOfMemory
from paceline.models.config import Encoder, ModelConfig
from paceline.models.families import family_of
from paceline.models.families.whisper import neighbours_of
from paceline.native.blocks import GROUP
from paceline.native.library import CHeads
from paceline.native.packed import Packed
from paceline.native.program import Program
from paceline.runtimes.cpu.matrices import Matrices
from paceline.runtimes.cpu.ops import FRAMES, MEMORY, NEIGHBOURS, CpuOps
from paceline.runtimes.kv_cache import BLOCK, BlockPool, PagedCache

# Memories beside one another, of the longest sound.
_MEMORIES = 32


@dataclass(eq=False, slots=True)
class CpuSound:
    """A sound that is being encoded: what is written, and what later parts read.

    Attributes:
        memory: of the rows so far.
        keys: of the encoder's layers, where these are kept.
        tail: the last two frames.
    """

    memory: PagedCache
    keys: PagedCache
    tail: LogitArray

    def release(self) -> None:
        for each in (self.memory, self.keys):
            each.release()


class MemoryWriter:
    """Makes memories, caches of a pool of their own; `shape` is that of the encoder."""

    def __init__(
        self,
        config: ModelConfig,
        shape: Encoder,
        matrices: Matrices,
        packed: Packed,
        dtype: type[np.generic],
        beside: MemoryWriter | None = None,
    ) -> None:
        """Record the encoder; MemoryError if there is no room.

        One `beside` another writes to the same pool, and its sounds may grow.
        """
        heads, blocks = (config.kv_heads, config.head_dim), -(-shape.rows // BLOCK)
        self._shape, self._matrices, kept = shape, matrices, beside is not None
        self._writing: CpuSound | None = None  # of whose sound the buffers are
        # Keys and values of the encoder's own layers, of which each forgets those of the last
        # unless sounds grow.
        room = (shape.layers, *heads, _MEMORIES * blocks) if kept else (1, *heads, blocks)
        self._own = BlockPool(*room, keep=0, dtype=dtype)
        self.pool: BlockPool = (
            BlockPool(config.layers, *heads, _MEMORIES * blocks, keep=0, dtype=dtype)
            if beside is None
            else beside.pool
        )
        self._program = Program(packed, CHeads(config.heads, config.kv_heads), shape.rows)
        self._ops = ops = CpuOps(
            self._program, matrices, self._own, config.norm_eps, memory=self.pool
        )
        self._program.paths("rows")
        frames = self._program.buffer(FRAMES, shape.mels + -shape.mels % GROUP)
        self._program.load(FRAMES, frames)
        encoder = family_of(config).encoder
        assert encoder is not None
        encoder(ops, config, shape, ops.given(frames, FRAMES), kept)

    def write(self, frames: LogitArray, threads: int) -> Iterator[PagedCache | None]:
        """Write the memory of frames that `check_frames` has seen; see `Listens.encoding`.

        OutOfMemory: there is no room.
        """
        sound, rows = self.begin(), len(frames) // 2
        try:
            self._reserve(sound.memory, rows)
            scratch = np.arange(-(-rows // BLOCK))
            for _ in self._pieces(sound, frames, np.full(rows, rows), scratch, threads):
                yield None
        except BaseException:  # of who needs it no more as well
            sound.release()
            raise
        sound.memory.length = rows
        yield sound.memory

    def begin(self) -> CpuSound:
        empty = np.zeros((0, self._shape.mels), np.float32)
        return CpuSound(PagedCache(self.pool), PagedCache(self._own), empty)

    def go_on(self, sound: CpuSound, frames: LogitArray, sees: IntArray, threads: int) -> None:
        """Write what comes next of a sound; nothing is written where OutOfMemory is raised."""
        rows = len(frames) // 2
        caches = sound.memory, sound.keys
        for each in caches:
            self._reserve(each, rows)
        wide = np.concatenate([sound.tail, frames])
        for _ in self._pieces(sound, wide, sees, np.array(sound.keys.blocks), threads):
            pass
        for each in caches:
            each.length += rows
        sound.tail = wide[-2:].copy()

    def _reserve(self, cache: PagedCache, rows: int) -> None:
        try:
            cache.reserve(rows)
        except OutOfMemory as error:
            raise OutOfMemory(
                f"no room for another sound beside {_MEMORIES}: finish or cancel requests"
            ) from error

    def _pieces(
        self,
        sound: CpuSound,
        frames: LogitArray,
        sees: IntArray,
        keys: IntArray,
        threads: int,
    ) -> Iterator[None]:
        # Rows behind those of the memory, whose keys lie in blocks `keys`.
        past, rows = sound.memory.length, len(sees)
        wide = np.pad(frames, ((0, 0), (0, -frames.shape[1] % GROUP)))
        at = past + np.arange(rows)
        blocks = np.array(sound.memory.blocks)
        inputs = {
            FRAMES: np.ascontiguousarray(wide, np.float32).reshape(-1).view(np.int32),
            "rows": run_rows(at, _slots(at, keys), sees),
            "tables": keys.astype(np.int32),
            "singles": [],
            f"{MEMORY}rows": run_rows(at, _slots(at, blocks), sees),
            f"{MEMORY}tables": blocks.astype(np.int32),
            f"{MEMORY}singles": [],
        }
        for stride, read in neighbours_of(sees, past).items():
            for name, column in zip(NEIGHBOURS, read.T, strict=True):
                inputs[f"{name}{stride}"] = column.astype(np.int32)
        for table in self._ops.placed_by:
            numbers = self._matrices.table_rows(table, at)
            inputs[table] = np.ascontiguousarray(numbers, np.float32).reshape(-1).view(np.int32)
        done = 0
        while done < len(self._program.names):
            if self._writing is not sound:  # what lies there is of another sound
                self._writing, done = sound, 0
                counts = {FRAMES: len(frames), "rows": rows}
                self._program.run(counts, inputs, threads, operations=0)
            self._program.go_on(done, threads)
            done += 1
            yield None
        self._writing = None


def run_rows(positions: IntArray, slots: IntArray, sees: IntArray | int) -> list[int]:
    """Return rows that see so many from the first on, as `ForwardBatch` has them."""
    fields = np.zeros((len(positions), 6), np.int64)
    fields[:, 0], fields[:, 1] = positions, slots
    fields[:, 3] = fields[:, 5] = sees
    found: list[int] = fields.reshape(-1).tolist()
    return found


def _slots(at: IntArray, blocks: IntArray) -> IntArray:
    found: IntArray = blocks[at // BLOCK] * BLOCK + at % BLOCK
    return found
