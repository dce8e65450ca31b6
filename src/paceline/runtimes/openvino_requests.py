"""Compiled instances of one graph, one per small forward size, so that no shape ever changes.

A second instance takes a second or two to compile and its own copy of the packed weights, so the
others are made in the background once a forward of more than one row shows that they are wanted,
and only while their memory stays a small part of the machine's. Until then, and without them, the
first instance serves every size and pays for changes of shape.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable

import openvino as ov

SIZES = (4, 8, 16)
"""Padded row counts that get an instance of their own; the first instance serves the rest."""

_MEMORY_SHARE = 8
"""All instances together may take this fraction of physical memory."""


class Requests:
    """Hands out the inference request for a number of rows."""

    def __init__(self, compile_request: Callable[[], ov.InferRequest], weight_bytes: int) -> None:
        """Compile the first instance.

        Args:
            compile_request: compiles the graph once more and binds the key-value caches.
            weight_bytes: what one instance's weights take.
        """
        self._compile = compile_request
        self._first = compile_request()
        self._own: dict[int, ov.InferRequest] = {}
        affordable = _physical_memory() // _MEMORY_SHARE // max(weight_bytes, 1) - 1
        self._missing = list(SIZES[: max(0, affordable)])
        self._worker: threading.Thread | None = None

    def get(self, rows: int) -> ov.InferRequest:
        """The request to run a forward of `rows` padded rows on."""
        if rows in self._missing and self._worker is None:
            # Not a daemon: the interpreter must not end in the middle of a compilation.
            self._worker = threading.Thread(target=self._work, name="paceline-compile")
            self._worker.start()
        return self._own.get(rows, self._first)

    def complete(self) -> None:
        """Make all instances now."""
        if self._worker is not None:
            self._worker.join()
        self._work()

    def _work(self) -> None:
        while self._missing:
            size = self._missing[0]
            try:
                self._own[size] = self._compile()
            except RuntimeError:  # out of memory, say: the first instance can do without
                self._missing.clear()
                return
            self._missing.remove(size)


def _physical_memory() -> int:
    """Bytes of memory in this machine; a modest guess where the system does not say."""
    try:
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    except (AttributeError, OSError, ValueError):
        return 8 * 2**30
