"""CPU features: available cores and instruction sets."""

from __future__ import annotations

import functools
import logging
import os
from pathlib import Path

# Instruction sets in ascending order: oneDNN's names and the kernel's flags.
_FLAGS = {
    "AVX": "avx",
    "AVX2": "avx2",
    "AVX2_VNNI": "avx_vnni",
    "AVX512_CORE": "avx512bw",
}

# Instruction set that a runtime requires.
_NEEDS = {"openvino": "AVX2"}

# oneDNN's variable that caps the instruction set.
_LIMIT = "ONEDNN_MAX_CPU_ISA"

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


def has(instructions: str) -> bool:
    """Return whether kernels may use an instruction set; True where the system does not say."""
    order = list(_FLAGS)
    here = flags()
    if "sse2" not in here:  # not x86, or not Linux
        return True
    best = max((place for place, name in enumerate(order) if _FLAGS[name] in here), default=-1)
    limit = os.environ.get(_LIMIT, "").upper()
    if limit == "SSE41":
        best = -1
    elif limit in order:
        best = min(best, order.index(limit))
    return best >= order.index(instructions)


def runs(runtime: str) -> bool:
    return runtime not in _NEEDS or has(_NEEDS[runtime])


def multiplies_bf16() -> bool:
    """Return whether there are instructions for bfloat16; elsewhere its products are emulated."""
    return not flags().isdisjoint(("avx512_bf16", "amx_bf16"))


@functools.cache
def flags() -> frozenset[str]:
    """Return the processor's feature flags from /proc/cpuinfo; empty on other systems."""
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        return frozenset()
    return frozenset(next((line for line in lines if line.startswith("flags")), "").split())
