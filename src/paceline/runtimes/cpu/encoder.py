"""An encoder as one native program, and the memories that it writes."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from paceline.core.types import IntArray, LogitArray
from paceline.errors import OutOfMemory
from paceline.models.config import Encoder, ModelConfig
from paceline.models.families import family_of
from paceline.native.blocks import GROUP
from paceline.native.library import CHeads
from paceline.native.packed import Packed
from paceline.native.program import Program
from paceline.runtimes.cpu.matrices import Matrices
from paceline.runtimes.cpu.ops import FRAMES, MEMORY, NEIGHBOURS, CpuOps
from paceline.runtimes.kv_cache import BLOCK, BlockPool, PagedCache

# Memories beside one another, of the longest sound.
_MEMORIES = 32


class MemoryWriter:
    """Makes memories, caches of a pool of their own; `shape` is that of the encoder."""

    def __init__(
        self,
        config: ModelConfig,
        shape: Encoder,
        matrices: Matrices,
        packed: Packed,
        dtype: type[np.generic],
    ) -> None:
        """Record the encoder; MemoryError if there is no room."""
        heads, blocks = (config.kv_heads, config.head_dim), -(-shape.rows // BLOCK)
        self.pool = BlockPool(config.layers, *heads, _MEMORIES * blocks, keep=0, dtype=dtype)
        self._shape, self._matrices = shape, matrices
        self._writing: PagedCache | None = None  # of whose sound the buffers are
        # Keys and values of the encoder's own layers, of which each forgets those of the last.
        own = BlockPool(1, *heads, blocks, keep=0, dtype=dtype)
        self._program = Program(packed, CHeads(config.heads, config.kv_heads), shape.rows)
        self._ops = ops = CpuOps(self._program, matrices, own, config.norm_eps, memory=self.pool)
        self._program.paths("rows")
        frames = self._program.buffer(FRAMES, shape.mels + -shape.mels % GROUP)
        self._program.load(FRAMES, frames)
        encoder = family_of(config).encoder
        assert encoder is not None
        encoder(ops, config, shape, ops.given(frames, FRAMES))

    def write(self, frames: LogitArray, threads: int) -> Iterator[PagedCache | None]:
        """Write the memory of frames that `check_frames` has seen; see `Listens.encoding`.

        OutOfMemory: there is no room.
        """
        count, rows = len(frames), len(frames) // 2
        memory = PagedCache(self.pool)
        try:
            memory.reserve(rows)
        except OutOfMemory as error:
            raise OutOfMemory(
                f"no room for another sound beside {_MEMORIES}: finish or cancel requests"
            ) from error
        memory.length = rows
        wide = np.pad(frames, ((0, 0), (0, -frames.shape[1] % GROUP)))
        at = np.arange(rows)
        blocks = np.array(memory.blocks)
        inputs = {
            FRAMES: np.ascontiguousarray(wide, np.float32).reshape(-1).view(np.int32),
            "rows": full_rows(at, at),
            "tables": np.arange(len(blocks), dtype=np.int32),
            "singles": [],
            f"{MEMORY}rows": full_rows(at * 0, blocks[at // BLOCK] * BLOCK + at % BLOCK),
            f"{MEMORY}tables": blocks.astype(np.int32),
            f"{MEMORY}singles": [],
        }
        for stride, of in ((1, np.arange(count)), (2, 2 * at)):
            for step, name in zip((-1, 0, 1), NEIGHBOURS, strict=True):
                rows_of = of + step
                inputs[f"{name}{stride}"] = np.where(rows_of < count, rows_of, -1).astype(np.int32)
        for table in self._ops.placed_by:
            numbers = self._matrices.table_rows(table, at)
            inputs[table] = np.ascontiguousarray(numbers, np.float32).reshape(-1).view(np.int32)
        done = 0
        try:
            while done < len(self._program.names):
                if self._writing is not memory:  # what lies there is of another sound
                    self._writing, done = memory, 0
                    counts = {FRAMES: count, "rows": rows}
                    self._program.run(counts, inputs, threads, operations=0)
                self._program.go_on(done, threads)
                done += 1
                yield None
        except BaseException:  # of who needs it no more as well
            memory.release()
            raise
        yield memory


def full_rows(positions: IntArray, slots: IntArray) -> list[int]:
    """Return rows that all see one another, as `ForwardBatch` has them."""
    count = len(positions)
    fields = np.zeros((count, 6), np.int64)
    fields[:, 0], fields[:, 1], fields[:, 3], fields[:, 5] = positions, slots, count, count
    found: list[int] = fields.reshape(-1).tolist()
    return found
