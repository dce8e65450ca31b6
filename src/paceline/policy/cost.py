"""Cost model c(n) of a forward over n rows, refined online by observed times."""

from __future__ import annotations

import json
from bisect import bisect_left
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from itertools import accumulate
from pathlib import Path
from time import perf_counter
from typing import Any

import numpy as np

from paceline.core import tree as trees
from paceline.core.cache import cache_dir, write_atomically
from paceline.core.target import Pass, Target
from paceline.core.types import ProbArray
from paceline.policy.constants import (
    COST_SMOOTHING,
    FORWARD_OUTLIER,
    ROW_PRICE_BELIEF,
    ROW_PRICE_LEAST,
    ROW_PRICE_MEMORY,
    ROW_PRICE_MOST,
)

# Present price of a row, relative to the measured one:


class RowPrice:
    """Running least-squares line through recent steps."""

    def __init__(self) -> None:
        # Of a row, in units of the measured one.
        self.price = 1.0
        self._weight = self._x = self._y = self._xx = self._xy = 0.0

    def observe(self, measured: float, seconds: float) -> None:
        """Add a forward: measured cost of its further rows, and time, in forwards of one row."""
        if self._weight > 1:
            pace = self._y / (self._weight + self.price * self._x)
            seconds = min(seconds, FORWARD_OUTLIER * pace * (1 + self.price * measured))
        self._weight = ROW_PRICE_MEMORY * self._weight + 1
        self._x = ROW_PRICE_MEMORY * self._x + measured
        self._y = ROW_PRICE_MEMORY * self._y + seconds
        self._xx = ROW_PRICE_MEMORY * self._xx + measured * measured
        self._xy = ROW_PRICE_MEMORY * self._xy + measured * seconds
        pace = self._y / (self._weight + self._x)  # if rows cost what was measured
        spread = self._xx - self._x * self._x / self._weight
        together = self._xy - self._x * self._y / self._weight
        slope = (together + ROW_PRICE_BELIEF * pace) / (spread + ROW_PRICE_BELIEF)
        begin = (self._y - slope * self._x) / self._weight
        price = slope / begin if begin > 0 else ROW_PRICE_MOST
        self.price = min(max(price, ROW_PRICE_LEAST), ROW_PRICE_MOST)


@dataclass
class CostModel:
    """Seconds of one forward by number of rows, and of sequences that they belong to.

    Attributes:
        sizes: rows, ascending, starting at 1.
        seconds: median seconds at each size, never decreasing; linear in between.
        sequence: seconds of one more sequence beyond its rows.
    """

    sizes: Sequence[int]
    seconds: list[float]
    sequence: float = 0.0
    _drift: float = field(default=1.0, init=False)
    _rows: RowPrice = field(default_factory=RowPrice, init=False)
    _measured: list[float] = field(init=False)
    _places: list[tuple[int, int, float]] = field(default_factory=list, init=False)

    def __post_init__(self) -> None:
        self._measured = list(self.seconds)

    def time(self, rows: int, sequences: int = 1) -> float:
        """Return estimated seconds of a forward over `rows` tokens."""
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
        if not above:
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
        """Refine the estimate at `rows` by the time of a step."""
        ratio = seconds / self.time(rows, sequences)
        self._drift *= 1 + 0.1 * (min(max(ratio / self._drift, 0.5), 2.0) - 1)
        if rows > self.sizes[-1]:
            return
        below, above, part = self._place(rows)
        relative = min(max(ratio / self._drift, 0.8), 1.25)
        self.seconds[below] *= 1 + (1 - part) * COST_SMOOTHING * (relative - 1)
        self.seconds[above] *= 1 + part * COST_SMOOTHING * (relative - 1)
        self.seconds[:] = accumulate(self.seconds, max)
        one, beyond = self._measured[0], self.sequence * (sequences - 1)
        measured = ((1 - part) * self._measured[below] + part * self._measured[above]) / one
        self._rows.observe(measured - 1, (seconds - beyond * self._drift) / one)


# Measurement of forward costs, cached on disk per machine and model.

# Rows per forward at which the cost is measured.
SIZES = (1, 2, 3, 4, 6, 8, 12, 16, 24, 32)

# Raised when what is measured changes, so that older figures on disk are not read.
COST_FORMAT = 20

_CONTEXT = 256
_ROUNDS = 7


def measure(target: Target) -> CostModel:
    """Time forwards over drafted chains of every size after a prefix; see `load_or_measure`."""
    capabilities = target.capabilities
    context = min(_CONTEXT, capabilities.max_context // 2)
    sizes = [size for size in SIZES if size <= capabilities.max_context - context]
    rng = np.random.default_rng(0)
    target.warm_up()
    cache = target.open()

    def timed(size: int) -> float:
        draft = trees.chain(rng.integers(0, capabilities.vocab_size, size - 1).tolist())
        begin = perf_counter()
        target.forward([Pass(cache, [0], draft)])
        return perf_counter() - begin

    try:
        target.prefill(cache, rng.integers(0, capabilities.vocab_size, context).tolist())
        sweeps = np.array([_sweep(timed, sizes) for _ in range(4)][1:])  # the first compiles
        sequence = _sequence_seconds(target, cache) if sizes[-1] >= _SEVERAL else 0.0
    finally:
        target.release(cache)
    # The machine may be slower in one sweep than in another: sizes are compared within sweeps.
    relative = np.median(sweeps / sweeps[:, :1], axis=0)
    seconds = np.median(sweeps[:, 0]) * np.maximum.accumulate(relative)
    return CostModel(sizes, seconds.tolist(), sequence)


def _sweep(timed: Callable[[int], float], sizes: Sequence[int]) -> ProbArray:
    # Per size, the median of a steady run after a forward that changed to it.
    steady = []
    for size in sizes:
        timed(size)
        steady.append(float(np.median([timed(size) for _ in range(_ROUNDS)])))
    return np.array(steady)


# Sequences of a forward by which the cost of one is measured.
_SEVERAL = 8


def _sequence_seconds(target: Target, cache: Any) -> float:
    # A chain against sequences of a row each.
    caches = [cache, *(target.fork(cache) for _ in range(_SEVERAL - 1))]
    ways = (
        [Pass(cache, [0], trees.chain([0] * (_SEVERAL - 1)))],
        [Pass(each, [0]) for each in caches],
    )
    samples: tuple[list[float], list[float]] = ([], [])
    try:
        for _ in range(3):
            for passes, times in zip(ways, samples, strict=True):
                for repeat in range(4):
                    begin = perf_counter()
                    target.forward(passes)
                    if repeat:  # not the one that pays for the change of shape
                        times.append(perf_counter() - begin)
    finally:
        for each in caches[1:]:
            target.release(each)
    chain, apart = (float(np.median(times)) for times in samples)
    return max(0.0, apart - chain) / (_SEVERAL - 1)


def load_or_measure(target: Target, key: Mapping[str, object]) -> CostModel:
    """Return the cached cost model, or measure one; `key` is all that the figures depend on."""
    name = "-".join(str(value).replace("/", "_") for value in key.values())
    path = cache_dir() / "costs" / f"{name}.json"
    cached = _read(path)
    if cached is not None:
        return cached
    model = measure(target)
    content = {
        "key": dict(key),
        "sizes": list(model.sizes),
        "seconds": model.seconds,
        "sequence": model.sequence,
    }
    with suppress(OSError):  # an unwritable cache costs a second at the next start, nothing else
        write_atomically(path, json.dumps(content, indent=1))
    return model


def _read(path: Path) -> CostModel | None:
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
        sizes = [int(size) for size in content["sizes"]]
        seconds = [float(second) for second in content["seconds"]]
        sequence = float(content["sequence"])
    except (OSError, ValueError, KeyError, TypeError):
        return None
    rising = sizes == sorted(set(sizes)) and seconds == sorted(seconds)
    finite = bool(np.isfinite([*seconds, sequence]).all())
    good = len(sizes) == len(seconds) > 0 and sizes[0] == 1 and seconds[0] > 0
    if not (good and rising and finite and sequence >= 0):
        return None
    return CostModel(sizes, seconds, sequence)
