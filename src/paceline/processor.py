"""What this processor offers: cores, and the instruction sets that kernels may use."""

from __future__ import annotations

import functools
import logging
import os
from pathlib import Path

_FLAGS = {
    "AVX": "avx",
    "AVX2": "avx2",
    "AVX2_VNNI": "avx_vnni",
    "AVX512_CORE": "avx512bw",
}
"""Instruction sets from the weakest up, under oneDNN's names, with the system's names for them."""

_NEEDS = {"openvino": "AVX2"}
"""What a runtime cannot do without."""

_LIMIT = "ONEDNN_MAX_CPU_ISA"
"""Variable by which users forbid oneDNN the better instruction sets."""

_LOG = logging.getLogger(__name__)


def cores() -> int:
    """Cores that this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def usable_threads(threads: int | None) -> int:
    """`threads`, or all cores; more than there are only wait for each other, so they are refused
    with a logged line and the number of cores is used."""
    available = cores()
    if threads is None or threads <= available:
        return threads or available
    _LOG.warning(
        "%d threads on %d cores would wait for each other: using %d", threads, available, available
    )
    return available


def has(instructions: str) -> bool:
    """Whether kernels may use an instruction set, or a better one of the same line.

    Args:
        instructions: "AVX", "AVX2", "AVX2_VNNI" or "AVX512_CORE".

    Returns:
        True also where the system does not say: other systems, other processors.
    """
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
    """Whether the processor has the instructions without which a runtime cannot run at all."""
    return runtime not in _NEEDS or has(_NEEDS[runtime])


@functools.cache
def flags() -> frozenset[str]:
    """The processor's features as Linux lists them; empty elsewhere."""
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        return frozenset()
    return frozenset(next((line for line in lines if line.startswith("flags")), "").split())
