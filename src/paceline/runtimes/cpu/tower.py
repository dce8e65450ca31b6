"""A tower and its projector as one native program."""

from __future__ import annotations

from collections.abc import Generator

import numpy as np

from paceline.core.types import LogitArray
from paceline.models.ops import square_rows
from paceline.models.towers import Vision, look
from paceline.models.weights import Weights
from paceline.native.blocks import GROUP
from paceline.native.library import CHeads
from paceline.native.packed import Packed
from paceline.native.program import Program
from paceline.runtimes.cpu.encoder import run_rows
from paceline.runtimes.cpu.matrices import Matrices
from paceline.runtimes.cpu.ops import SQUARES, CpuOps
from paceline.runtimes.kv_cache import BLOCK, BlockPool

_PATCHES = "patches"


class CpuTower:
    """Reads pictures, one at a time. Its rows depend on the picture and the weights alone."""

    def __init__(
        self, vision: Vision, weights: Weights, precision: str = "file", threads: int = 1
    ) -> None:
        """Pack the weights and record it; MemoryError if there is no room."""
        tower = vision.tower
        self._vision, self._threads = vision, threads
        packed = Packed()
        self._matrices = Matrices(weights, precision, packed, threads)
        # Each layer forgets the keys and values of the one before.
        blocks = -(-tower.rows // BLOCK)
        heads = tower.heads, tower.wide_head
        pool = BlockPool(1, *heads, blocks, keep=0, dtype=np.float32)
        self._program = program = Program(packed, CHeads(tower.heads, tower.heads), tower.rows)
        self._ops = ops = CpuOps(program, self._matrices, pool, tower.eps)
        program.paths("rows")
        pixels = 3 * tower.patch**2
        patches = program.buffer("rows", pixels + -pixels % GROUP)
        program.load(_PATCHES, patches)
        seen = look(ops, vision, ops.given(patches, "rows"))
        self._out = program.buffer(SQUARES, vision.width)
        program.gather(seen.columns(), None, self._out)
        self._busy: object = None  # whose picture the buffers are of

    def reading(self, patches: LogitArray) -> Generator[LogitArray | None, None, None]:
        """Read a picture in pieces: yield None after each, and in the end its rows.

        `patches` are those of `towers.look`. Of two at a time each begins anew when it is its turn.
        Rows are float32 `[vision.rows, vision.width]`.
        """
        tower, me = self._vision.tower, object()
        at = np.arange(tower.rows)
        inputs = {
            _PATCHES: np.ascontiguousarray(patches, np.float32).reshape(-1).view(np.int32),
            "rows": run_rows(at, at, len(at)),
            "tables": np.arange(-(-tower.rows // BLOCK), dtype=np.int32),
            "singles": [],
        }
        for tap, rows in enumerate(square_rows(tower.rows, tower.grid, self._vision.side)):
            inputs[f"{SQUARES}{tap}"] = rows.astype(np.int32)
        for table in self._ops.placed_by:
            numbers = self._matrices.table_rows(table, at)
            inputs[table] = np.ascontiguousarray(numbers, np.float32).reshape(-1).view(np.int32)
        counts, done = {"rows": tower.rows, SQUARES: self._vision.rows}, 0
        while done < len(self._program.names):
            if self._busy is not me:
                self._busy, done = me, 0
                self._program.run(counts, inputs, self._threads, operations=0)
            self._program.go_on(done, self._threads)
            done += 1
            if done < len(self._program.names):
                yield None
        yield self._program.read(self._out, self._vision.rows).copy()
