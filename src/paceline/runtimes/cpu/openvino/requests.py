"""Compiled instances of one OpenVINO graph: a dynamic one, and fixed shapes for small forwards.

A fixed shape saves shape inference on every forward, but costs compilation and a copy of the
weights. So it is compiled in the background once its shape is used often, within a memory limit.
"""

from __future__ import annotations

import logging
import os
import threading
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from time import perf_counter
from typing import Any, NamedTuple, Protocol

import numpy as np
import numpy.typing as npt
import openvino as ov

from paceline.core.types import LogitArray
from paceline.errors import OutOfMemory
from paceline.runtimes.cpu.backend import NO_ROOM, Input
from paceline.runtimes.cpu.profile import GROUPS, Counted, by_group

# Forwards of a shape before an instance of its own pays for its compilation.
_AFTER = 64

# All instances together take at most one part in so many of physical memory.
_MEMORY_SHARE = 8

# The first inferences set up what later ones reuse.
_WARM_UPS = 3

_LOG = logging.getLogger(__name__)


class Shape(NamedTuple):
    """Row counts of one forward, padding included."""

    dense: int
    attention: int


class Instance:
    """A compiled instance with its bound inputs.

    Binding a tensor costs more than copying its few numbers, so a bound array is rewritten as long
    as its shape stays.
    """

    def __init__(self, request: ov.InferRequest) -> None:
        self._request = request
        self._bound: dict[str, npt.NDArray[Any]] = {}
        self._lengths = _lengths(request)
        self.seconds = 0.0

    def run(self, inputs: Mapping[str, Input]) -> None:
        """Set all inputs and infer.

        A vector whose length the instance fixes may be given shorter; the rest is not read.

        Raises:
            OutOfMemory: the forward is too large for the machine; the instance stays usable.
        """
        for name, values in inputs.items():
            bound = self._bound.get(name)
            size = 1 if isinstance(values, int) else len(values)
            length = self._lengths.get(name, size)
            if bound is not None and bound.size == length:
                bound[... if size == length else slice(size)] = values
                continue
            kind = values.dtype if isinstance(values, np.ndarray) else np.int32
            bound = np.array(values, dtype=kind)
            if size < length:
                bound = np.concatenate([bound, np.zeros(length - size, dtype=kind)])
            tensor = ov.Tensor(bound, shared_memory=True) if length else ov.Tensor(bound)
            self._request.set_tensor(name, tensor)
            self._bound[name] = bound
        begin = perf_counter()
        try:
            self._request.infer()
        except (RuntimeError, MemoryError) as error:
            if not _no_memory(error):
                raise
            raise OutOfMemory(
                "no memory for a forward of this size: send fewer or shorter requests"
            ) from error
        self.seconds = perf_counter() - begin

    def nodes(self) -> Any:
        """Return the profile of the last inference; empty without counters."""
        return self._request.get_profiling_info()

    def output(self, name: str) -> LogitArray:
        """Return a float32 view of an output, which the next run overwrites."""
        data: LogitArray = self._request.get_tensor(name).data
        return data

    def argmax(self) -> list[int]:
        return []


def _lengths(request: ov.InferRequest) -> dict[str, int]:
    shapes = {port.get_any_name(): port.get_partial_shape() for port in request.model_inputs}
    return {
        name: shape.get_shape()[0]
        for name, shape in shapes.items()
        if shape.is_static and len(shape) == 1
    }


class Requests:
    """Choose the instance for a shape of forward."""

    def __init__(
        self,
        compile_request: Callable[[Shape | None], ov.InferRequest],
        shapes: Sequence[Shape],
        weight_bytes: int,
    ) -> None:
        """Compile the dynamic instance.

        Args:
            compile_request: compiles the graph for a fixed shape, or for any if None.
            shapes: shapes that an instance may be fixed to.
            weight_bytes: an instance's own copy of the weights; 0 if it has none.

        Raises:
            OutOfMemory: there is no memory for a single instance.
        """
        self._compile = compile_request
        try:
            self._general = Instance(compile_request(None))
        except (RuntimeError, MemoryError) as error:
            if not _no_memory(error):
                raise
            raise OutOfMemory(NO_ROOM) from error
        self._fixed: dict[Shape, Instance] = {}
        affordable = _physical_memory() // _MEMORY_SHARE // max(weight_bytes, 1) - 1
        self._missing = list(shapes)[: max(0, affordable)]
        self._used: Counter[Shape] = Counter()
        self._worker: threading.Thread | None = None

    def get(self, shape: Shape) -> Instance:
        """Return the instance for a shape; the dynamic one until its own is compiled."""
        if shape in self._missing:
            self._used[shape] += 1
            if self._used[shape] >= _AFTER and self._worker is None:
                # Not a daemon: the interpreter must not end in the middle of a compilation.
                self._worker = threading.Thread(target=self._work, args=([shape],))
                self._worker.start()
        return self._fixed.get(shape, self._general)

    def complete(self) -> None:
        """Compile all missing instances now."""
        if self._worker is not None:
            self._worker.join()
        self._work(list(self._missing))

    def _work(self, shapes: list[Shape]) -> None:
        for shape in shapes:
            try:
                self._fixed[shape] = Instance(self._compile(shape))
                self._missing.remove(shape)
            except (RuntimeError, MemoryError) as error:
                reason = str(error).strip().rsplit("\n", 1)[-1] or "out of memory"
                _LOG.warning(
                    "no instance of its own for forwards over %d rows (%s): they go on with the "
                    "general one, somewhat slower",
                    shape.dense,
                    reason,
                )
                self._missing.clear()
                break
        self._worker = None


def _no_memory(error: Exception) -> bool:
    # The plugin has no error class for this, and each of its parts words it differently.
    text = str(error)
    return isinstance(error, MemoryError) or "alloc" in text or "memalign" in text


def _physical_memory() -> int:
    try:
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    except (AttributeError, OSError, ValueError):
        return 8 * 2**30


class Counting(Protocol):
    """A compiled instance with counters."""

    seconds: float

    def nodes(self) -> Any:
        """Return name, type and time of each node; times are means since compilation."""
        ...


def count(run: Callable[[], None], instance: Counting, runs: int) -> Counted:
    """Run an instance and average over `runs` inferences, warm-ups subtracted."""
    for _ in range(_WARM_UPS):
        run()
    before = _by_group(instance.nodes())
    total = 0.0
    for _ in range(runs):
        run()
        total += instance.seconds
    after = _by_group(instance.nodes())
    added = {
        name: max(0.0, (_WARM_UPS + runs) * after[name] - _WARM_UPS * before[name])
        for name in GROUPS
    }
    return Counted(total / runs, {name: seconds / runs for name, seconds in added.items()})


def _by_group(nodes: Any) -> dict[str, float]:
    return by_group((n.node_name, n.node_type, n.real_time.total_seconds()) for n in nodes)
