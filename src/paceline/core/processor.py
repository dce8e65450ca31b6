"""CPU features: available cores and instruction sets."""

from __future__ import annotations

import ctypes
import functools
import logging
import os
import platform
import sys
from pathlib import Path

# Words and bits of getauxval: AT_HWCAP is 16, AT_HWCAP2 26.
_AARCH64 = {"asimd": (16, 1), "asimddp": (16, 20), "i8mm": (26, 13), "bf16": (26, 14)}

_LOG = logging.getLogger(__name__)


def cores() -> int:
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def usable_threads(threads: int | None) -> int:
    """Return `threads`, or all cores. More threads than cores are reduced, with a logged line."""
    available = cores()
    if threads is None or threads <= available:
        return threads or available
    _LOG.warning(
        "%d threads on %d cores would wait for each other: using %d", threads, available, available
    )
    return available


def multiplies_bf16() -> bool:
    """Return whether there are instructions for bfloat16; elsewhere its products are emulated."""
    return not flags().isdisjoint(("avx512_bf16", "amx_bf16"))


@functools.cache
def flags() -> frozenset[str]:
    """Return the processor's feature flags as Linux names them; empty on other systems."""
    if platform.machine() == "aarch64" and sys.platform == "linux":
        # Not from /proc/cpuinfo, which under emulation is that of the host.
        ask = ctypes.CDLL(None).getauxval
        ask.restype, ask.argtypes = ctypes.c_ulong, (ctypes.c_ulong,)
        return frozenset(name for name, (word, bit) in _AARCH64.items() if ask(word) >> bit & 1)
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        return frozenset()
    found = next((line for line in lines if line.startswith(("flags", "Features"))), "")
    return frozenset(found.split(":")[-1].split())
