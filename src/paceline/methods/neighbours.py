"""Neighbouring Autoregressive Modelling (He et al. 2025, arXiv:2503.10696): a grid by distance.

All cells as far from the first corner (by steps along axes) are drawn in one pass: an n x n grid in
2n - 1, a box of any number of axes likewise. A head for each axis says the next cell along it; a
cell with several neighbours nearer by one has the mean of what they say. A row sees all cells as
far as its own, and nearer ones. Another factorisation than line by line: cells of one pass are
independent given those before.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, ClassVar

import numpy as np

from paceline.core.options import require
from paceline.core.target import Rows, Target
from paceline.core.types import Described, IntArray, LogitArray
from paceline.errors import InvalidOption
from paceline.sampling.randomness import Draw, Purpose, Randomness


class Rings:
    """Cells of a box, by their numbers line by line, and the order in which they are drawn.

    Attributes:
        rings: int64 `[cells]` by distance from the first corner.
        order: the start, as 0, then all cells plus one, ring after ring: positions of rows.
        parents: int64 `[cells, axes]`, the cell before along each axis, -1 for none.
    """

    def __init__(self, shape: Sequence[int]) -> None:
        """Lay out a box; InvalidOption for a side below 1."""
        require(len(shape) >= 1 and min(shape) >= 1, "shape", shape, "sides of 1 or more")
        places = np.indices(shape).reshape(len(shape), -1)
        distance = places.sum(axis=0)
        self.rings = [np.flatnonzero(distance == each) for each in range(distance.max() + 1)]
        self.order: IntArray = np.concatenate([[0], *(ring + 1 for ring in self.rings)])
        numbers = np.arange(distance.size).reshape(shape)
        before = [np.roll(numbers, 1, axis) for axis in range(len(shape))]
        self.parents: IntArray = np.where(places > 0, [each.ravel() for each in before], -1).T

    @property
    def sees(self) -> Any:
        """Return bool `[rows, rows]`, what rows in `order` see."""
        ring = np.repeat(np.arange(len(self.rings) + 1), [1, *map(len, self.rings)])
        return ring[None] <= ring[:, None]

    def mixed(self, said: LogitArray, cells: IntArray) -> LogitArray:
        """Return `[cells, symbols]`, the means of what neighbours say of cells.

        `said` is `[all cells + 1, axes, symbols]`, of the start, then of cells by number. Of the
        first cell all heads of the start speak.
        """
        parents = self.parents[cells]
        some = (parents >= 0) | (cells == 0)[:, None]
        given = said[parents + 1, np.arange(parents.shape[1])] * some[..., None]
        mean: LogitArray = given.sum(axis=1) / some.sum(axis=1, keepdims=True)
        return mean


Choose = Callable[[IntArray, LogitArray], Sequence[int] | IntArray]
"""From the numbers of cells, and their logits `[cells, symbols]`, to their symbols."""


class Neighbours(Described):
    """Draws boxes of symbols by a model whose LM head has `symbols` rows for each axis.

    Attributes:
        passes: forwards of the last box.
    """

    name: ClassVar[str] = "neighbours"
    guarantee: ClassVar[str] = "lossy: a model of another kind; equal to its masked forward"
    requires: ClassVar[str] = "a model trained with a head for each axis; none ships"
    paper: ClassVar[str] = "after NAR, He et al. 2025, arXiv:2503.10696"

    def __init__(self, target: Target, shape: Sequence[int], symbols: int) -> None:
        """Bind a model; the symbols are 0 to `symbols - 1`, the last of which is the start.

        InvalidOption: a side is below 1, the head has other rows, or the model runs no blocks.
        """
        self._grid, self._target, self._symbols = Rings(shape), target, symbols
        self._shape, self._axes, self.passes = tuple(shape), len(shape), 0
        rows = target.capabilities.vocab_size
        if rows != symbols * self._axes:
            raise InvalidOption(
                f"the LM head has {rows} rows, not {symbols} for each of {self._axes} axes: take "
                "a model that was trained so"
            )
        if not target.capabilities.blocks:
            raise InvalidOption(
                "a grid needs rows that see one another, which this model on this runtime does not "
                "run: take one without recurrent layers, on cpu, torch or reference"
            )

    def draw(self, randomness: Randomness) -> IntArray:
        """Return a box that is drawn at temperature 1; each cell's draw has its name alone."""

        def choose(cells: IntArray, logits: LogitArray) -> list[int]:
            shares = np.exp(_log_shares(logits[:, :-1]))
            named = [Draw(int(cell) + 1, Purpose.TARGET) for cell in cells]
            return [randomness.choice(p, draw) for p, draw in zip(shares, named, strict=True)]

        return self._run(choose)

    def nats(self, box: IntArray) -> float:
        """Return the negative log-likelihood of a box; the start counts among the symbols."""
        given, total = box.ravel(), [0.0]

        def choose(cells: IntArray, logits: LogitArray) -> IntArray:
            total.append(-_log_shares(logits)[np.arange(len(cells)), given[cells]].sum())
            return given[cells]

        self._run(choose)
        return float(sum(total))

    def masked_rows(self, cache: Any, box: IntArray) -> Rows:
        """Return all rows but the last ring's for one forward, as a model is trained on them."""
        count = len(self._grid.order) - len(self._grid.rings[-1])
        tokens = np.concatenate([[self._symbols - 1], box.ravel()])[self._grid.order[:count]]
        sees = self._grid.sees[:count, :count]
        return Rows.block(cache, tokens, self._grid.order[:count], sees, wanted=np.arange(count))

    def _run(self, choose: Choose) -> IntArray:
        grid, target, symbols = self._grid, self._target, self._symbols
        said = np.zeros((len(grid.order), self._axes, symbols), np.float32)
        box = np.zeros(len(grid.order) - 1, np.int64)
        tokens, places = np.array([symbols - 1]), np.zeros(1, np.int64)
        self.passes, cache = 0, target.open()
        try:
            for ring in grid.rings:
                every = np.arange(len(places))
                sees = np.ones((len(places),) * 2, np.bool_)
                [out] = target.forward([Rows.block(cache, tokens, places, sees, wanted=every)])
                said[places] = out.logits.reshape(len(places), self._axes, symbols)
                target.keep(cache, 0, range(len(places)))
                self.passes += 1
                box[ring] = choose(ring, grid.mixed(said, ring))
                tokens, places = box[ring], ring + 1
        finally:
            target.release(cache)
        return box.reshape(self._shape)


def _log_shares(logits: LogitArray) -> Any:
    wide = logits.astype(np.float64)
    wide -= wide.max(axis=1, keepdims=True)
    return wide - np.log(np.exp(wide).sum(axis=1, keepdims=True))
