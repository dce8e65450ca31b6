"""Measurement of forward costs, cached on disk per machine and model."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from time import perf_counter
from typing import Any

import numpy as np

from paceline import tree as trees
from paceline.controllers.cost import CostModel
from paceline.models.cache import cache_dir, write_atomically
from paceline.target import Pass, Target
from paceline.types import ROOT, ProbArray, TokenTree

# Rows per forward at which the cost is measured, for runtimes that do not pad.
SIZES = (1, 2, 3, 4, 6, 8, 12, 16, 24, 32)

# Larger forwards of a padding runtime share one shape-changing instance: they are estimated.
_LARGEST_PADDED = 16

# Raised when what is measured changes, so that older figures on disk are not read.
COST_FORMAT = 19

_CONTEXT = 256
_ROUNDS = 7
# Share of a plain step under which a change of size counts as free, and so do branches.
_NOTICEABLE = 0.03


def measure(target: Target) -> CostModel:
    """Time forwards over drafted chains of every size after a prefix; see `load_or_measure`."""
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
        noticed = _NOTICEABLE * float(np.median(sweeps[:, 0]))
        branch, fork = _branch_seconds(target, cache, noticed) if several else (0.0, 0.0)
        sequence = _sequence_seconds(target, cache) if several else 0.0
    finally:
        target.release(cache)
    # The machine may be slower in one sweep than in another: sizes are compared within sweeps.
    relative = np.median(sweeps / sweeps[:, :1], axis=0)
    seconds = np.median(sweeps[:, 0]) * np.maximum.accumulate(relative)
    if switch < noticed:
        switch = 0.0
    return CostModel(sizes, seconds.tolist(), switch, padded, branch, fork, sequence)


def _sweep(timed: Callable[[int], float], sizes: Sequence[int]) -> ProbArray:
    # Per size, the median of a steady run after a forward that changed to it.
    steady = []
    for size in sizes:
        timed(size)
        steady.append(float(np.median([timed(size) for _ in range(_ROUNDS)])))
    return np.array(steady)


def _switch_seconds(timed: Callable[[int], float], sizes: Sequence[int]) -> float:
    # A steadily used size finds part of its weights in the last-level cache. Median over rounds
    # of the mean over `sizes`: alternating sizes against steady runs.
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


def _branch_seconds(target: Target, cache: Any, noticed: float) -> tuple[float, float]:
    # Seconds per extra path and token of context, and seconds for branching at all: a chain,
    # two paths and a star of as many rows. Below `noticed` seconds branches count as free.
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
    paths = most - max(two, one)
    path = paths / (_STAR - 3) if paths >= noticed else 0.0
    fork = two - one - path
    return path / max(int(cache.length), 1), fork if fork >= noticed else 0.0


def _sequence_seconds(target: Target, cache: Any) -> float:
    # A chain against sequences of a row each.
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
