"""A fault on purpose that a sanitizer must see: `python faults.py address`, or `thread`."""

from __future__ import annotations

import ctypes
import sys
import threading

import numpy as np

from paceline.native.library import library
from paceline.native.packed import Packed

loaded = library()
assert loaded is not None


def address() -> None:
    """A row is read into too short an array."""
    packed = Packed()
    matrix = packed.matrix("F32", np.zeros((1, 128), np.uint8), 32)
    rows, out = np.zeros(1, np.int64), np.zeros(31, np.float32)
    loaded.paceline_read_rows(ctypes.byref(matrix), rows.ctypes.data, 1, out.ctypes.data)


def thread() -> None:
    """Two threads write to one array, neither waiting for the other."""
    packed = Packed()
    matrix = packed.matrix("F32", np.zeros((1, 128 << 10), np.uint8), 32 << 10)
    rows, out = np.zeros(99, np.int64), np.zeros(32 << 10, np.float32)
    arguments = ctypes.byref(matrix), rows.ctypes.data, 1, out.ctypes.data
    both = [
        threading.Thread(target=lambda: [loaded.paceline_read_rows(*arguments) for _ in range(99)])
        for _ in range(2)
    ]
    for each in both:
        each.start()
    for each in both:
        each.join()


{"address": address, "thread": thread}[sys.argv[1]]()
