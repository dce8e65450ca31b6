"""Pages of memory: what the system may take back, and what it gives out in large pages.

Where the system's library cannot do it, nothing happens: it changes no number.
"""

from __future__ import annotations

import ctypes
import mmap
from contextlib import suppress
from typing import Any

import numpy.typing as npt

_SMALL = 15  # Linux: MADV_NOHUGEPAGE, which the module has from Python 3.13 on


def forget(array: npt.NDArray[Any]) -> None:
    """Let pages of a mapped file go, which count as this process's memory until then."""
    page = mmap.PAGESIZE
    begin, end = -(-array.ctypes.data // page) * page, array.ctypes.data + array.nbytes
    _advise(begin, end // page * page, getattr(mmap, "MADV_DONTNEED", None))


def in_small_pages(array: npt.NDArray[Any]) -> None:
    """Keep new memory out of large pages, each of which is taken whole for its first number."""
    # With the page that it begins in, which may be the end of a large one.
    begin = array.ctypes.data // mmap.PAGESIZE * mmap.PAGESIZE
    _advise(begin, begin + array.nbytes, _SMALL if hasattr(mmap, "MADV_HUGEPAGE") else None)


def give_back() -> None:
    """Give the system the memory of objects that are gone."""
    with suppress(AttributeError, OSError, TypeError):
        ctypes.CDLL(None).malloc_trim(0)


def _advise(begin: int, end: int, advice: int | None) -> None:
    if advice is not None and begin < end:
        with suppress(AttributeError, OSError, TypeError):
            ctypes.CDLL(None).madvise(ctypes.c_void_p(begin), ctypes.c_size_t(end - begin), advice)
