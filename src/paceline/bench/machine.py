"""What a bench ran on."""

from __future__ import annotations

import os
import platform
from pathlib import Path
from typing import Any

from paceline.processor import cores


def machine() -> dict[str, Any]:
    """Processor, cores that this process may use, and memory in GiB (None where unknown)."""
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
