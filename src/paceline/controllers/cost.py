"""What a forward over n tokens costs: c(n), refined by what forwards take."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import accumulate

import numpy as np

from paceline.controllers.row_price import RowPrice
from paceline.types import IntArray, ProbArray

_SMOOTHING = 0.02
"""Weight of one observed step in the running estimate; a timing here is noisy."""


@dataclass
class CostModel:
    """Seconds of one forward by number of rows, and of sequences that they belong to.

    Attributes:
        sizes: rows, ascending, starting at 1.
        seconds: median seconds at each size in a steady run of that size, never decreasing.
        switch: seconds that a forward costs more when its size differs from the one before.
        padded: whether the runtime pads rows up to the next size, so that time is a staircase;
            else it is linear between sizes.
        branch: seconds that one more root-to-leaf path costs per token of context.
        fork: seconds that any branching costs, however many paths there are: a chain takes a
            simpler way through the target.
        sequence: seconds that one more sequence costs beyond its rows.
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

    def __post_init__(self) -> None:
        """Remember what was measured."""
        self._measured = list(self.seconds)

    def size(self, rows: int) -> int:
        """The number of rows that a forward over `rows` is padded to."""
        above = bisect_left(self.sizes, rows) if self.padded else len(self.sizes)
        return self.sizes[above] if above < len(self.sizes) else rows

    def times(self, rows: IntArray, sequences: int = 1) -> ProbArray:
        """Estimated seconds of forwards over int64 `[n]` tokens, each in a steady run."""
        return np.array([self.time(count, sequences) for count in rows.tolist()])

    def time(self, rows: int, sequences: int = 1) -> float:
        """Estimated seconds of a forward over `rows` tokens in a steady run of that size."""
        return self._rows_time(rows) + self.sequence * (sequences - 1)

    def span(self, rows: int, more: int, sequences: int = 1) -> list[float]:
        """Estimated seconds of forwards over `rows`, `rows + 1`, ..., `rows + more` tokens: `time`
        of each, for what is asked at every step."""
        beyond = self.sequence * (sequences - 1)
        out: list[float] = []
        end = rows + more + 1
        while rows < end:
            above = bisect_left(self.sizes, rows)
            size, seconds, slope = self._line(above)
            to = min(size + 1, end) if above < len(self.sizes) else end
            out += [seconds + slope * (count - size) + beyond for count in range(rows, to)]
            rows = to
        return out

    def _rows_time(self, rows: int) -> float:
        size, seconds, slope = self._line(bisect_left(self.sizes, rows))
        return seconds + slope * (rows - size)

    def _line(self, above: int) -> tuple[int, float, float]:
        """Where times lie from the size before place `above` on up to the one there: a point of
        the line, and its slope. Behind the last size its line goes on."""
        sizes, seconds, price = self.sizes, self.seconds, self._rows.price
        place = min(above, len(sizes) - 1)
        now = seconds[0] + price * (seconds[place] - seconds[0])
        if not place or (self.padded and above == place):
            return sizes[place], now, 0.0
        rise = seconds[place] - seconds[place - 1]
        return sizes[place], now, price * rise / (sizes[place] - sizes[place - 1])

    @property
    def pace(self) -> float:
        """Seconds that pass on this machine at the moment per estimated one."""
        return self._drift

    def c(self, rows: int) -> float:
        """Cost of a forward over `rows` tokens in units of a forward over one."""
        return self.time(rows) / self.time(1)

    def curve(self) -> dict[int, float]:
        """c(n) at the measured sizes."""
        return {size: round(self.c(size), 3) for size in self.sizes}

    def observe(self, rows: int, seconds: float, sequences: int = 1) -> None:
        """Refine the estimate at `rows` by the time of a step that did not switch sizes.

        The machine's speed of the moment is divided out first: what matters for choosing a size
        is how sizes compare, and a slow minute must not be booked on the sizes it happened to use.
        """
        ratio = seconds / self.time(rows, sequences)
        self._drift *= 1 + 0.1 * (min(max(ratio / self._drift, 0.5), 2.0) - 1)
        places = self._around(self.size(rows))
        if not places:
            return
        relative = min(max(ratio / self._drift, 0.8), 1.25)
        for place, share in places:
            self.seconds[place] *= 1 + share * _SMOOTHING * (relative - 1)
        self.seconds[:] = accumulate(self.seconds, max)
        if not self.padded:
            one, beyond = self._measured[0], self.sequence * (sequences - 1)
            measured = sum(share * self._measured[place] for place, share in places) / one
            self._rows.observe(measured - 1, (seconds - beyond * self._drift) / one)

    def _around(self, rows: int) -> list[tuple[int, float]]:
        """The measured sizes that the time of `rows` follows from, and by how much."""
        above = bisect_left(self.sizes, rows)
        if above == len(self.sizes):
            return []
        if self.sizes[above] == rows or not above:
            return [(above, 1.0)]
        part = (rows - self.sizes[above - 1]) / (self.sizes[above] - self.sizes[above - 1])
        return [(above - 1, 1 - part), (above, part)]
