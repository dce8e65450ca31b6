"""Time of the native mixture over rows together, row by row, and with all experts read.

Weights are random and large, so that memory is the limit; which experts a row uses is taken from
a model's rows that follow one another. One thread, by its own time on the processor, which others
on the machine do not count in.
"""

from __future__ import annotations

from collections.abc import Sequence
from statistics import median
from time import thread_time

import numpy as np

from paceline.core.types import BoolArray
from paceline.native.packed import Packed
from paceline.native.program import GATES, Columns, Program

KIND, BLOCK_BYTES = "Q8_0", 34
WAYS = ("together", "row by row", "all experts")


class Mixtures:
    """Layers of experts over the same rows; each layer has weights of its own."""

    def __init__(self, layers: int, experts: int, width: int, inner: int) -> None:
        self.width, rng = width, np.random.default_rng(0)
        self.expert_bytes = 2 * width * inner // 32 * BLOCK_BYTES
        packed = Packed()

        def matrix(outputs: int, inputs: int) -> object:
            blocks = rng.integers(0, 256, (outputs, inputs // 32, BLOCK_BYTES), dtype=np.uint8)
            blocks[..., :2] = np.array([0x1400], "<u2").view(np.uint8)  # a small scale
            return packed.matrix(KIND, blocks.reshape(outputs, -1), inputs)

        self._programs = {}
        made = [
            [
                [matrix(inner, width) for _ in range(experts)],
                [matrix(width, inner) for _ in range(experts)],
            ]
            for _ in range(layers)
        ]
        for every in (False, True):
            program = Program(packed)
            x = program.buffer("rows", width)
            weights = [program.buffer("rows", experts) for _ in range(layers)]
            outs = [program.buffer("rows", width) for _ in range(layers)]
            for each, at, out in zip(made, weights, outs, strict=True):
                shape = {"activation": GATES["silu"], "every": every}
                program.mix("mix", each, x, at, out, residual=x, **shape)  # type: ignore[arg-type]
            self._programs[every] = program, x, weights, outs

    def run(self, used: Sequence[BoolArray], *, every: bool = False) -> tuple[float, list[object]]:
        """Return seconds and results by layer of one pass over rows `[rows, experts]` by layer."""
        program, x, weights, outs = self._programs[every]
        rows = len(used[0])
        counts = {"rows": rows}
        program.run(counts, {}, 1, operations=0)  # makes room for the rows
        program.read(x, rows)[:] = np.random.default_rng(1).standard_normal((1, self.width))
        for at, each in zip(weights, used, strict=True):
            program.read(at, rows)[:] = each
        begin = thread_time()
        program.run(counts, {}, 1)
        return thread_time() - begin, [self._read(program, out, rows) for out in outs]

    @staticmethod
    def _read(program: Program, out: Columns, rows: int) -> object:
        return program.read(out, rows).copy()


def times(
    mixtures: Mixtures, used: Sequence[BoolArray], size: int, chunks: int
) -> dict[str, float]:
    """Return the median milliseconds of the ways over chunks of `size` rows, by turns.

    Raises:
        AssertionError: results differ in a bit.
    """
    found: dict[str, list[float]] = {way: [] for way in WAYS}
    for chunk in range(chunks):
        part = [each[chunk * size : (chunk + 1) * size] for each in used]
        together, out = mixtures.run(part)
        alone = [mixtures.run([each[i : i + 1] for each in part]) for i in range(size)]
        whole, dense = mixtures.run(part, every=True)
        for layer, rows in enumerate(out):
            assert np.array_equal(rows, dense[layer])  # type: ignore[arg-type]
            assert np.array_equal(rows, np.concatenate([each[1][layer] for each in alone]))  # type: ignore[arg-type]
        seconds = together, sum(each[0] for each in alone), whole
        for way, each in zip(WAYS, seconds, strict=True):
            found[way].append(1e3 * each)
    return {way: median(each) for way, each in found.items()}
