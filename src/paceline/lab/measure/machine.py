"""The machine that figures come from, and JSON without NaN or Infinity."""

from __future__ import annotations

import json
import math
import os
import platform
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from paceline.core.processor import cores


def machine() -> dict[str, Any]:
    """Return processor, usable cores, and memory in GiB (None where unknown)."""
    return {
        "system": f"{platform.system()} {platform.machine()}",
        "cpu": _processor(),
        "cores": cores(),
        "memory_gib": _memory(),
    }


def _processor() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
        return next(
            line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")
        )
    except (OSError, StopIteration, IndexError):
        return platform.processor() or platform.machine()


def _memory() -> float | None:
    try:
        return round(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30, 1)
    except (AttributeError, OSError, ValueError):  # no such figures on this system
        return None


def dumps(value: Any, indent: int | None = None) -> str:
    """Return `value` as strict JSON; numbers that are not finite become null."""
    return json.dumps(_finite(value), ensure_ascii=False, allow_nan=False, indent=indent)


def _finite(value: Any) -> Any:
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, Mapping):
        return {str(key): _finite(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(item) for item in value]
    return value


BUSY = 0.25
"""Processors' worth of others' work from which on a speed is none of ours."""


class Others:
    """How much of the machine other processes take, from now on."""

    def __init__(self) -> None:
        self._begin = _clocks()

    @property
    def busy(self) -> bool:
        """Whether they have taken `BUSY` processors or more; False where a system does not tell."""
        wall, used, own = (now - then for now, then in zip(_clocks(), self._begin, strict=True))
        return used - own > BUSY * wall


def _clocks() -> tuple[float, float, float]:
    """Return seconds: of the wall, of all processors at work, and of this process and its own."""
    try:
        line = Path("/proc/stat").read_text(encoding="utf-8").splitlines()[0]
        ticks = [int(each) for each in line.split()[1:9]]
        used = (sum(ticks) - ticks[3] - ticks[4]) / os.sysconf("SC_CLK_TCK")
    except (OSError, ValueError, IndexError):
        used = 0.0
    return time.perf_counter(), used, sum(os.times()[:4])
