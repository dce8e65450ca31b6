"""What a forward over n tokens costs on this machine: c(n), measured, cached, refined."""

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

from paceline import tree as trees
from paceline.models.cache import cache_dir, write_atomically
from paceline.target import Pass, Target
from paceline.types import ROOT, IntArray, ProbArray, TokenTree

SIZES = (1, 2, 3, 4, 6, 8, 12, 16, 24, 32)
"""Rows per forward at which the cost is measured, for runtimes that do not pad."""

_LARGEST_PADDED = 16
"""Larger forwards of a padding runtime share one shape-changing instance: they are estimated."""

COST_FORMAT = 15
"""Raised when what is measured changes, so that older figures on disk are not read."""

_CONTEXT = 256
_ROUNDS = 7
_NOTICEABLE = 0.03
"""Share of a plain step under which a change of size counts as free."""

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
        sizes, seconds = self.sizes, self.seconds
        place = min(above, len(sizes) - 1)
        if not place or (self.padded and above == place):
            return sizes[place], seconds[place], 0.0
        rise = seconds[place] - seconds[place - 1]
        return sizes[place], seconds[place], rise / (sizes[place] - sizes[place - 1])

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
        relative = min(max(ratio / self._drift, 0.8), 1.25)
        for place, share in self._around(self.size(rows)):
            self.seconds[place] *= 1 + share * _SMOOTHING * (relative - 1)
        self.seconds[:] = accumulate(self.seconds, max)

    def _around(self, rows: int) -> list[tuple[int, float]]:
        """The measured sizes that the time of `rows` follows from, and by how much."""
        above = bisect_left(self.sizes, rows)
        if above == len(self.sizes):
            return []
        if self.sizes[above] == rows or not above:
            return [(above, 1.0)]
        part = (rows - self.sizes[above - 1]) / (self.sizes[above] - self.sizes[above - 1])
        return [(above - 1, 1 - part), (above, part)]


def measure(target: Target) -> CostModel:
    """Time forwards over drafted chains of every size behind a prefix of 256 tokens.

    Takes about two seconds on a small model; the result is worth caching (`load_or_measure`).
    """
    capabilities = target.capabilities
    padded = bool(capabilities.row_buckets)
    context = min(_CONTEXT, capabilities.max_context // 2)
    known = [size for size in capabilities.row_buckets if size <= _LARGEST_PADDED] or SIZES
    sizes = [size for size in known if size <= capabilities.max_context - context]
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
        switch = _switch_seconds(timed, sizes[:3]) if padded and len(sizes) > 1 else 0.0
        several = sizes[-1] >= _STAR
        branch, fork = _branch_seconds(target, cache) if several else (0.0, 0.0)
        sequence = _sequence_seconds(target, cache) if several else 0.0
    finally:
        target.release(cache)
    # The machine may be slower in one sweep than in another: sizes are compared within sweeps.
    relative = np.median(sweeps / sweeps[:, :1], axis=0)
    seconds = np.median(sweeps[:, 0]) * np.maximum.accumulate(relative)
    if switch < _NOTICEABLE * seconds[0]:
        switch = 0.0
    return CostModel(sizes, seconds.tolist(), switch, padded, branch, fork, sequence)


def _sweep(timed: Callable[[int], float], sizes: Sequence[int]) -> ProbArray:
    """Seconds by size, each the median of a steady run after a forward that changed to it."""
    steady = []
    for size in sizes:
        timed(size)
        steady.append(float(np.median([timed(size) for _ in range(_ROUNDS)])))
    return np.array(steady)


def _switch_seconds(timed: Callable[[int], float], sizes: Sequence[int]) -> float:
    """What a forward costs more when its size is not that of the one before.

    A size that is used steadily finds part of its own weights in the last-level cache. The figure
    is the median over turns, each the mean over `sizes`, of taking sizes by turns against runs.
    """
    extra = []
    for _ in range(_ROUNDS):
        steady = []
        for size in sizes:
            timed(size)
            steady.append(np.mean([timed(size) for _ in range(2)]))
        alternate = np.mean([[timed(size) for size in sizes] for _ in range(2)], axis=0)
        extra.append(float(np.mean(alternate - np.array(steady))))
    return float(np.median(extra))


_STAR = 8


def _branch_seconds(target: Target, cache: Any) -> tuple[float, float]:
    """Seconds per extra path and token of context, and seconds for branching at all.

    A chain, two paths and a star of as many rows are compared.
    """
    if not target.capabilities.tree:
        return 0.0, 0.0
    tokens = np.arange(_STAR - 1)
    twin = np.array([ROOT, *range(_STAR - 3), ROOT])
    star = np.full(_STAR - 1, ROOT)
    drafts = (trees.chain(tokens.tolist()), TokenTree(tokens, twin), TokenTree(tokens, star))
    samples: list[list[float]] = [[], [], []]
    for _ in range(3):
        for draft, times in zip(drafts, samples, strict=True):
            for repeat in range(4):
                begin = perf_counter()
                target.forward([Pass(cache, [0], draft)])
                if repeat:  # not the one that pays for the change of shape
                    times.append(perf_counter() - begin)
    one, two, most = (float(np.median(times)) for times in samples)
    path = max(0.0, most - max(two, one)) / (_STAR - 3)
    return path / max(int(cache.length), 1), max(0.0, two - one - path)


def _sequence_seconds(target: Target, cache: Any) -> float:
    """Seconds that one more sequence costs: a chain is compared with sequences of a row each."""
    caches = [cache, *(target.fork(cache) for _ in range(_STAR - 1))]
    ways = (
        [Pass(cache, [0], trees.chain([0] * (_STAR - 1)))],
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
    return max(0.0, apart - chain) / (_STAR - 1)


def load_or_measure(target: Target, key: Mapping[str, object]) -> CostModel:
    """The cached cost model of this machine and model, or a fresh measurement.

    Args:
        target: what to measure.
        key: everything the figures depend on: model, precision, threads, versions.
    """
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
        "switch": model.switch,
        "padded": model.padded,
        "branch": model.branch,
        "fork": model.fork,
        "sequence": model.sequence,
    }
    with suppress(OSError):  # an unwritable cache costs a second at the next start, nothing else
        write_atomically(path, json.dumps(content, indent=1))
    return model


def _read(path: Path) -> CostModel | None:
    """A cost model from disk, or None if there is none that makes sense."""
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
        sizes = [int(size) for size in content["sizes"]]
        seconds = [float(second) for second in content["seconds"]]
        switch, padded = float(content["switch"]), bool(content["padded"])
        branch, fork = float(content["branch"]), float(content["fork"])
        sequence = float(content["sequence"])
    except (OSError, ValueError, KeyError, TypeError):
        return None
    rising = sizes == sorted(set(sizes)) and seconds == sorted(seconds)
    finite = bool(np.isfinite([*seconds, switch, branch, fork, sequence]).all())
    good = len(sizes) == len(seconds) > 0 and sizes[0] == 1 and seconds[0] > 0
    good = good and min(switch, branch, fork, sequence) >= 0
    if not (good and rising and finite):
        return None
    return CostModel(sizes, seconds, switch, padded, branch, fork, sequence)
