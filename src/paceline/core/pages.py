"""Pages of memory: what the system may take back, and what it gives out in large pages.

Where the system's library cannot do it, nothing happens: it changes no number.
"""

from __future__ import annotations

import ctypes
import mmap
from contextlib import suppress
from typing import Any, Literal

import numpy.typing as npt

_SMALL = 15  # Linux: MADV_NOHUGEPAGE, which the module has from Python 3.13 on


def advise(array: npt.NDArray[Any], advice: Literal["forget", "small"]) -> None:
    """Say what becomes of an array's pages.

    "forget": those of a mapped file, which count as this process's memory until then, may go.
    "small": new memory is not taken in large pages, each of which is taken whole for one number.
    """
    page, begin = mmap.PAGESIZE, array.ctypes.data
    end = begin + array.nbytes
    if advice == "forget":
        code = getattr(mmap, "MADV_DONTNEED", None)
        begin, end = -(-begin // page) * page, end // page * page
    else:
        code = _SMALL if hasattr(mmap, "MADV_HUGEPAGE") else None
        begin = begin // page * page  # a page that may be the end of a large one
    if code is not None and begin < end:
        with suppress(AttributeError, OSError, TypeError):
            ctypes.CDLL(None).madvise(ctypes.c_void_p(begin), ctypes.c_size_t(end - begin), code)


def give_back() -> None:
    """Give the system the memory of objects that are gone."""
    with suppress(AttributeError, OSError, TypeError):
        ctypes.CDLL(None).malloc_trim(0)
