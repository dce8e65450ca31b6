"""How much memory the machine has left."""

from __future__ import annotations

import re
from pathlib import Path

_MEMORY = Path("/proc/meminfo")
# Limit and use of this process's group, by the two versions of Linux's control groups.
_GROUPS = (
    ("/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory.current"),
    (
        "/sys/fs/cgroup/memory/memory.limit_in_bytes",
        "/sys/fs/cgroup/memory/memory.usage_in_bytes",
    ),
)


def free_memory() -> int:
    """Return bytes that may still be taken; 0 where the system does not say."""
    try:
        found = re.search(r"MemAvailable:\s+(\d+) kB", _MEMORY.read_text())
    except OSError:
        return 0
    free = int(found.group(1)) * 1024 if found else 0
    for limit, used in _GROUPS:
        try:
            most = Path(limit).read_text().strip()
            if most.isdigit():
                free = min(free, int(most) - int(Path(used).read_text()))
        except (OSError, ValueError):
            continue
    return max(0, free)
