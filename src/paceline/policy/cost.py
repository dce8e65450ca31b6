"""Cost model c(n) of a forward over n rows, refined online by observed times."""

from __future__ import annotations

import json
import logging
from bisect import bisect_left
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from itertools import accumulate
from pathlib import Path
from time import perf_counter

import numpy as np

from paceline.core import tree as trees
from paceline.core.cache import cache_dir, write_atomically
from paceline.core.target import Rows, Target, open_for_figures
from paceline.policy.constants import (
    COST_SMOOTHING,
    FORWARD_OUTLIER,
    ROW_PRICE_BELIEF,
    ROW_PRICE_FORGET,
    ROW_PRICE_LEARN,
    ROW_PRICE_LEAST,
    ROW_PRICE_MEMORY,
    ROW_PRICE_MOST,
)

_LOG = logging.getLogger(__name__)


class RowPrice:
    """Running least-squares line through recent steps of one number of sequences."""

    def __init__(self, price: float = 1.0) -> None:
        # Of a row, in units of the measured one; believed until the steps say another.
        self.price = self._prior = price
        self._weight = self._x = self._y = self._xx = self._xy = 0.0

    def observe(self, measured: float, seconds: float) -> None:
        """Add a forward: measured cost of its drafted rows, and time, in plain forwards."""
        if self._weight > 1:
            pace = self._y / (self._weight + self.price * self._x)
            seconds = min(seconds, FORWARD_OUTLIER * pace * (1 + self.price * measured))
        self._weight = ROW_PRICE_MEMORY * self._weight + 1
        self._x = ROW_PRICE_MEMORY * self._x + measured
        self._y = ROW_PRICE_MEMORY * self._y + seconds
        self._xx = ROW_PRICE_MEMORY * self._xx + measured * measured
        self._xy = ROW_PRICE_MEMORY * self._xy + measured * seconds
        pace = self._y / (self._weight + self._prior * self._x)  # if rows cost what is believed
        spread = self._xx - self._x * self._x / self._weight
        together = self._xy - self._x * self._y / self._weight
        slope = (together + ROW_PRICE_BELIEF * self._prior * pace) / (spread + ROW_PRICE_BELIEF)
        begin = (self._y - slope * self._x) / self._weight
        price = slope / begin if begin > 0 else ROW_PRICE_MOST
        self.price = min(max(price, ROW_PRICE_LEAST), ROW_PRICE_MOST)
        # What was learned outlives its steps; what was measured is believed again only slowly.
        if measured > 0:
            self._prior += ROW_PRICE_LEARN * (self.price - self._prior)
        else:
            self._prior += ROW_PRICE_FORGET * (1.0 - self._prior)


class _Load:
    # Steps of one number of sequences: seconds that pass per estimated one, and a row's price.

    def __init__(self, pace: float = 1.0, price: float = 1.0) -> None:
        self.pace = pace
        self.rows = RowPrice(price)


@dataclass
class CostModel:
    """Seconds of one forward by number of rows; what sequences cost beyond theirs shows in steps.

    Attributes:
        sizes: rows, ascending, starting at 1.
        seconds: median seconds at each size, never decreasing; linear in between.
        keep: writes what was learned, now and then; None keeps nothing.
    """

    sizes: Sequence[int]
    seconds: list[float]
    keep: Callable[[CostModel], None] | None = field(default=None, compare=False)
    _loads: dict[int, _Load] = field(default_factory=dict, init=False)  # by sequences
    _last: _Load = field(default_factory=_Load, init=False)
    _steps: int = field(default=0, init=False)
    _measured: list[float] = field(init=False)
    _places: list[tuple[int, int, float]] = field(default_factory=list, init=False)

    def __post_init__(self) -> None:
        self._measured = list(self.seconds)

    def time(self, rows: int, sequences: int = 1) -> float:
        """Return estimated seconds of a forward over `rows` tokens."""
        return self.span(rows, 0, sequences)[0]

    def span(self, rows: int, more: int, sequences: int = 1) -> list[float]:
        """Return `time` of forwards over `rows` to `rows + more` tokens, in one call."""
        while len(self._places) <= max(rows + more, sequences):
            self._places.append(self._place(len(self._places)))
        seconds, price = self.seconds, self._load(sequences).rows.price
        below, above, part = self._places[sequences]
        plain = (1 - part) * seconds[below] + part * seconds[above]
        fixed = (1 - price) * plain
        return [
            fixed + price * ((1 - part) * seconds[below] + part * seconds[above])
            for below, above, part in self._places[rows : rows + more + 1]
        ]

    def _load(self, sequences: int) -> _Load:
        # That of the nearest number of sequences, where there were no steps of this one yet.
        found = self._loads.get(sequences)
        if found is None and self._loads:
            found = self._loads[min(self._loads, key=lambda known: abs(known - sequences))]
        return found or _Load()

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
        return self._last.pace

    def c(self, rows: int) -> float:
        """Return the cost of a forward over `rows` tokens in units of a forward over one."""
        return self.time(rows) / self.time(1)

    def curve(self) -> dict[int, float]:
        """Return c(n) at the measured sizes."""
        return {size: round(self.c(size), 3) for size in self.sizes}

    def observe(self, rows: int, seconds: float, sequences: int = 1) -> None:
        """Refine the estimate at `rows` by the time of a step."""
        if sequences not in self._loads:
            near = self._load(sequences)
            self._loads[sequences] = _Load(near.pace, near.rows.price)
        self._last = load = self._loads[sequences]
        ratio = seconds / self.time(rows, sequences)
        load.pace *= 1 + 0.1 * (min(max(ratio / load.pace, 0.5), 2.0) - 1)
        self._steps += 1
        below, above, part = self._place(rows)
        plain = self._interpolated(self._place(sequences))
        if rows <= self.sizes[-1]:
            relative = min(max(ratio / load.pace, 0.8), 1.25)
            self.seconds[below] *= 1 + (1 - part) * COST_SMOOTHING * (relative - 1)
            self.seconds[above] *= 1 + part * COST_SMOOTHING * (relative - 1)
            self.seconds[:] = accumulate(self.seconds, max)
        more = self._interpolated((below, above, part)) - plain
        load.rows.observe(more / plain, seconds / plain)
        if self.keep is not None and self._steps & (self._steps - 1) == 0 and self._steps >= _KEPT:
            self.keep(self)

    def _interpolated(self, place: tuple[int, int, float]) -> float:
        below, above, part = place
        return (1 - part) * self._measured[below] + part * self._measured[above]


# Rows per forward at which the cost is known.
SIZES = (1, 2, 3, 4, 6, 8, 12, 16, 24, 32)

# The same, those first that say most of the others.
_ORDER = (1, 8, 4, 2, 16, 32, 12, 6, 3, 24)

# Raised when what is measured changes, so that older figures on disk are not read.
COST_FORMAT = 21

# Seconds that a measurement may take, beyond a forward of 1 row and one of 8: at a start, where
# decoding will soon say more, and where the figures are what was asked for.
QUICK, CAREFUL = 1.0, 20.0

_CONTEXT = 256
_ROUNDS = 12
_KEPT = 128  # steps after which what was learned is first written; then at each doubling


def measure(target: Target, within: float = CAREFUL) -> CostModel:
    """Time forwards over drafted chains, after a prefix, for `within` seconds.

    Sizes for which no time is left are interpolated: see `load_or_measure`.
    """
    capabilities = target.capabilities
    context = min(_CONTEXT, capabilities.max_context // 2)
    sizes = [size for size in SIZES if size <= capabilities.max_context - context]
    rng = np.random.default_rng(0)
    end = perf_counter() + within
    target.warm_up()
    cache = open_for_figures(target)

    def timed(size: int) -> float:
        draft = trees.chain(rng.integers(0, capabilities.vocab_size, size - 1).tolist())
        begin = perf_counter()
        target.forward([Rows.draft(cache, [0], draft)])
        return perf_counter() - begin

    try:
        target.prefill(cache, [0])
        read = min(context - 1, int((end - perf_counter()) / (4 * timed(1))))
        if read > 0:
            target.prefill(cache, rng.integers(0, capabilities.vocab_size, read).tolist())
        rounds = _rounds(timed, [size for size in _ORDER if size in sizes], end)
        found = _medians(rounds)
    finally:
        target.release(cache)
    timed_sizes = sorted(found)
    line = CostModel(timed_sizes, list(accumulate(map(found.__getitem__, timed_sizes), max)))
    return CostModel(sizes, [line.time(size) for size in sizes])


def _rounds(
    timed: Callable[[int], float], order: Sequence[int], end: float
) -> list[dict[int, float]]:
    # Seconds by size, round by round until time is up; two sizes in any case.
    rounds: list[dict[int, float]] = [{size: timed(size) for size in order[:2]}]
    todo = [(0, size) for size in order[2:]]
    todo += [(turn, size) for turn in range(1, _ROUNDS) for size in order]
    for turn, size in todo:
        if perf_counter() >= end:
            break
        if turn == len(rounds):
            rounds.append({})
        rounds[turn][size] = timed(size)
    return rounds


def _medians(rounds: list[dict[int, float]]) -> dict[int, float]:
    # The machine may be slower in one round than in another: sizes are compared within rounds.
    # The first forward of a size may compile, and no forward takes longer than its rows alone.
    one = float(np.median([each[1] for each in rounds[1:] or rounds]))
    out = {}
    for size in rounds[0]:
        ratios = [each[size] / each[1] for each in rounds if size in each]
        out[size] = one * min(float(np.median(ratios[1:] or ratios)), size)
    return out


def load_or_measure(
    target: Target, key: Mapping[str, object], within: float = CAREFUL
) -> CostModel:
    """Return the cost model that is kept on disk, or measure one for `within` seconds.

    `key` is all that the figures depend on. What decoding teaches is kept too. A model that was
    measured in less time is measured anew.
    """
    name = "-".join(str(value).replace("/", "_") for value in key.values())
    path = cache_dir() / "costs" / f"{name}.json"

    def keep(model: CostModel) -> None:
        content = {
            "key": dict(key),
            "within": within,
            "sizes": list(model.sizes),
            "seconds": [model.time(size) * model.pace for size in model.sizes],
        }
        with suppress(OSError):  # an unwritable cache costs a second at the next start
            write_atomically(path, json.dumps(content, indent=1))

    model, spent = _read(path)
    if model is None or spent < within:
        _LOG.info("measuring what a forward costs here, for %.0f s or a little more", within)
        model = measure(target, within)
        keep(model)
    else:
        within = spent
    return replace(model, keep=keep)


def _read(path: Path) -> tuple[CostModel | None, float]:
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
        sizes = [int(size) for size in content["sizes"]]
        seconds = [float(second) for second in content["seconds"]]
        within = float(content["within"])
    except (OSError, ValueError, KeyError, TypeError):
        return None, 0.0
    rising = sizes == sorted(set(sizes)) and seconds == sorted(seconds)
    finite = bool(np.isfinite([*seconds, within]).all())
    good = len(sizes) == len(seconds) > 0 and sizes[0] == 1 and seconds[0] > 0
    return (CostModel(sizes, seconds), within) if good and rising and finite else (None, 0.0)
