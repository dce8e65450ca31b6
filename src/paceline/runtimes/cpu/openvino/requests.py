"""Compiled instances of one graph: a general one, and one for each of some small shapes.

A fixed shape saves the plugin the work of inferring and preparing every node's shape: 15% of a
plain step, and a third of one that follows a step of another size. But where products are the
plugin's, an instance takes a second or two to compile and holds its own copy of the packed weights.
So it is made in the background once its shape has been used often enough to pay, and only while all
instances' memory stays a small part of the machine's. Until then, and for all other shapes, the
general instance serves.
"""

from __future__ import annotations

import logging
import os
import threading
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from time import perf_counter
from typing import Any

import numpy as np
import numpy.typing as npt
import openvino as ov

from paceline.core.types import LogitArray
from paceline.errors import OutOfMemory
from paceline.runtimes.cpu.batch import Input, Shape

_AFTER = 64
"""Forwards of a shape after which an instance of its own is worth compiling."""

_MEMORY_SHARE = 8
"""All instances together may take this fraction of physical memory."""

NO_ROOM = "no memory to load the model: free some, or load a smaller model or precision int8"
"""The error of a model that does not fit."""

_LOG = logging.getLogger(__name__)


class Instance:
    """A compiled instance with the inputs that are bound to it.

    Binding a tensor costs as much as ten copies of its few numbers, so a bound array is written
    again as long as its shape stays.
    """

    def __init__(self, request: ov.InferRequest) -> None:
        """Bind nothing yet."""
        self._request = request
        self._bound: dict[str, npt.NDArray[Any]] = {}
        self._lengths = _lengths(request)
        self.seconds = 0.0
        """What the last inference took, inputs and outputs left out."""

    def run(self, inputs: Mapping[str, Input]) -> None:
        """Set all inputs and infer.

        A vector whose length the instance fixes may be given shorter: what is behind it is not
        read.

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
        """What the nodes of the last inference took; empty without counters."""
        return self._request.get_profiling_info()

    def output(self, name: str) -> LogitArray:
        """float32 view of an output, which the next run overwrites."""
        data: LogitArray = self._request.get_tensor(name).data
        return data

    def argmax(self) -> list[int]:
        """Not known."""
        return []


def _lengths(request: ov.InferRequest) -> dict[str, int]:
    """Lengths of the inputs that are vectors of fixed length, by name."""
    shapes = {port.get_any_name(): port.get_partial_shape() for port in request.model_inputs}
    return {
        name: shape.get_shape()[0]
        for name, shape in shapes.items()
        if shape.is_static and len(shape) == 1
    }


class Requests:
    """Hands out the instance for a shape of forward."""

    def __init__(
        self,
        compile_request: Callable[[Shape | None], ov.InferRequest],
        shapes: Sequence[Shape],
        weight_bytes: int,
    ) -> None:
        """Compile the general instance.

        Args:
            compile_request: compiles the graph once more, for a fixed shape or for any, and
                binds the key-value caches.
            shapes: those that an instance may be fixed to.
            weight_bytes: what one instance's own copy of the weights takes; 0 if it has none.

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
        """The instance to run a forward of that shape on."""
        if shape in self._missing:
            self._used[shape] += 1
            if self._used[shape] >= _AFTER and self._worker is None:
                # Not a daemon: the interpreter must not end in the middle of a compilation.
                self._worker = threading.Thread(target=self._work, args=([shape],))
                self._worker.start()
        return self._fixed.get(shape, self._general)

    def complete(self) -> None:
        """Make all instances now."""
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
    """Whether an error of the plugin means that an allocation failed; each part words it anew."""
    text = str(error)
    return isinstance(error, MemoryError) or "alloc" in text or "memalign" in text


def _physical_memory() -> int:
    """Bytes of memory in this machine; a modest guess where the system does not say."""
    try:
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    except (AttributeError, OSError, ValueError):
        return 8 * 2**30
