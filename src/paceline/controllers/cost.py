"""What a forward over n tokens costs on this machine: c(n), measured, cached, refined."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from time import perf_counter

import numpy as np

from paceline import tree as trees
from paceline.models.cache import cache_dir, write_atomically
from paceline.target import Pass, Target

SIZES = (1, 2, 3, 4, 6, 8, 12, 16, 24, 32)
"""Rows per forward at which the cost is measured."""

_CONTEXT = 256
_ROUNDS = 9
_SMOOTHING = 0.02
"""Weight of one observed step in the running estimate; a timing here is noisy."""


@dataclass
class CostModel:
    """Seconds of one forward by number of rows, linear between measured sizes.

    Attributes:
        sizes: rows, ascending, starting at 1.
        seconds: median seconds at each size, never decreasing.
    """

    sizes: Sequence[int]
    seconds: list[float]
    _drift: float = field(default=1.0, init=False)

    def time(self, rows: int) -> float:
        """Estimated seconds of a forward over `rows` tokens."""
        if rows <= self.sizes[-1]:
            return float(np.interp(rows, self.sizes, self.seconds))
        slope = (self.seconds[-1] - self.seconds[-2]) / (self.sizes[-1] - self.sizes[-2])
        return self.seconds[-1] + slope * (rows - self.sizes[-1])

    def c(self, rows: int) -> float:
        """Cost of a forward over `rows` tokens in units of a forward over one."""
        return self.time(rows) / self.time(1)

    def curve(self) -> dict[int, float]:
        """c(n) at the measured sizes."""
        return {size: round(self.c(size), 3) for size in self.sizes}

    def observe(self, rows: int, seconds: float) -> None:
        """Refine the estimate near `rows` by a step's time.

        The machine's speed of the moment is divided out first: what matters for choosing a size
        is how sizes compare, and a slow minute must not be booked on the sizes it happened to use.
        """
        ratio = seconds / self.time(rows)
        self._drift += 0.1 * (min(max(ratio, 0.5), 2.0) - self._drift)
        relative = min(max(ratio / self._drift, 0.8), 1.25)
        index = int(np.argmin(np.abs(np.asarray(self.sizes) - rows)))
        if self.sizes[index] == rows:
            self.seconds[index] *= 1 + _SMOOTHING * (relative - 1)
            self.seconds[:] = np.maximum.accumulate(self.seconds).tolist()


def measure(target: Target, sizes: Sequence[int] = SIZES) -> CostModel:
    """Time forwards over drafted chains of every size, interleaved, behind a prefix of 256 tokens.

    Takes about a second on a small model; the result is worth caching (`load_or_measure`).
    """
    limit = target.capabilities.max_context - _CONTEXT
    sizes = [size for size in sizes if size <= max(limit, 1)]
    rng = np.random.default_rng(0)
    cache = target.open()
    try:
        vocabulary = target.capabilities.vocab_size
        context = min(_CONTEXT, target.capabilities.max_context // 2)
        target.prefill(cache, rng.integers(0, vocabulary, context).tolist())
        samples: dict[int, list[float]] = {size: [] for size in sizes}
        for round_index in range(_ROUNDS + 1):
            for size in sizes:
                draft = trees.chain(rng.integers(0, vocabulary, size - 1).tolist())
                begin = perf_counter()
                target.forward([Pass(cache, [0], draft)])
                if round_index:  # the first round compiles kernels for new shapes
                    samples[size].append(perf_counter() - begin)
    finally:
        target.release(cache)
    seconds = [float(np.median(samples[size])) for size in sizes]
    return CostModel(sizes, np.maximum.accumulate(seconds).tolist())


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
    content = {"key": dict(key), "sizes": list(model.sizes), "seconds": model.seconds}
    with suppress(OSError):  # an unwritable cache costs a second at the next start, nothing else
        write_atomically(path, json.dumps(content, indent=1))
    return model


def _read(path: Path) -> CostModel | None:
    """A cost model from disk, or None if there is none that makes sense."""
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
        sizes = [int(size) for size in content["sizes"]]
        seconds = [float(second) for second in content["seconds"]]
    except (OSError, ValueError, KeyError, TypeError):
        return None
    good = len(sizes) == len(seconds) > 1 and sizes[0] == 1 and min(seconds) > 0
    return CostModel(sizes, seconds) if good and sizes == sorted(set(sizes)) else None
