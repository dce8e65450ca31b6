"""Cost model c(n) of a forward over n rows, refined online by observed times."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import accumulate

import numpy as np

from paceline.controllers.row_price import RowPrice
from paceline.types import IntArray, ProbArray

# Weight of one observed step in the running estimate; a timing here is noisy.
_SMOOTHING = 0.02


@dataclass
class CostModel:
    """Seconds of one forward by number of rows, and of sequences that they belong to.

    Attributes:
        sizes: rows, ascending, starting at 1.
        seconds: median seconds at each size in a steady run of that size, never decreasing.
        switch: extra seconds of a forward whose size differs from the one before.
        padded: whether the runtime pads rows up to the next size, so that time is a staircase;
            else it is linear between sizes.
        branch: seconds of one more root-to-leaf path per token of context.
        fork: seconds of any branching, however many paths: a chain takes a simpler attention path.
        sequence: seconds of one more sequence beyond its rows.
    """

    sizes: Sequence[int]
    seconds: list[float]
    switch: float = 0.0
    padded: bool = False
    branch: float = 0.0
    fork: float = 0.0
    sequence: float = 0.0
    _drift: float = field(default=1.0, init=False)
    _rows: RowPrice = field(default_factory=RowPrice, init=False)
    _measured: list[float] = field(init=False)
    _places: list[tuple[int, int, float]] = field(default_factory=list, init=False)

    def __post_init__(self) -> None:
        self._measured = list(self.seconds)

    def size(self, rows: int) -> int:
        """Return the number of rows that a forward over `rows` is padded to."""
        above = bisect_left(self.sizes, rows) if self.padded else len(self.sizes)
        return self.sizes[above] if above < len(self.sizes) else rows

    def times(self, rows: IntArray, sequences: int = 1) -> ProbArray:
        """Return estimated seconds of forwards over int64 `[n]` rows, each in a steady run."""
        return np.array([self.time(count, sequences) for count in rows.tolist()])

    def time(self, rows: int, sequences: int = 1) -> float:
        """Return estimated seconds of a forward over `rows` tokens in a steady run of that size."""
        return self.span(rows, 0, sequences)[0]

    def span(self, rows: int, more: int, sequences: int = 1) -> list[float]:
        """Return `time` of forwards over `rows` to `rows + more` tokens, in one call."""
        while len(self._places) <= rows + more:
            self._places.append(self._place(len(self._places)))
        seconds, price = self.seconds, self._rows.price
        fixed = (1 - price) * seconds[0] + self.sequence * (sequences - 1)
        return [
            fixed + price * ((1 - part) * seconds[below] + part * seconds[above])
            for below, above, part in self._places[rows : rows + more + 1]
        ]

    def _place(self, rows: int) -> tuple[int, int, float]:
        # Two measured sizes to interpolate between, and the share of the second. After the last
        # size its line goes on.
        sizes = self.sizes
        place = bisect_left(sizes, rows)
        above = min(place, len(sizes) - 1)
        if not above or (self.padded and place == above):
            return above, above, 1.0
        below = above - 1
        return below, above, (rows - sizes[below]) / (sizes[above] - sizes[below])

    @property
    def pace(self) -> float:
        """Return the machine's present speed: seconds that pass per estimated one."""
        return self._drift

    def c(self, rows: int) -> float:
        """Return the cost of a forward over `rows` tokens in units of a forward over one."""
        return self.time(rows) / self.time(1)

    def curve(self) -> dict[int, float]:
        """Return c(n) at the measured sizes."""
        return {size: round(self.c(size), 3) for size in self.sizes}

    def observe(self, rows: int, seconds: float, sequences: int = 1) -> None:
        """Refine the estimate at `rows` by a step that did not switch sizes."""
        ratio = seconds / self.time(rows, sequences)
        self._drift *= 1 + 0.1 * (min(max(ratio / self._drift, 0.5), 2.0) - 1)
        size = self.size(rows)
        if size > self.sizes[-1]:
            return
        below, above, part = self._place(size)
        relative = min(max(ratio / self._drift, 0.8), 1.25)
        self.seconds[below] *= 1 + (1 - part) * _SMOOTHING * (relative - 1)
        self.seconds[above] *= 1 + part * _SMOOTHING * (relative - 1)
        self.seconds[:] = accumulate(self.seconds, max)
        if not self.padded:
            one, beyond = self._measured[0], self.sequence * (sequences - 1)
            measured = ((1 - part) * self._measured[below] + part * self._measured[above]) / one
            self._rows.observe(measured - 1, (seconds - beyond * self._drift) / one)
