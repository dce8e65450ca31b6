"""Pages that are given back: of mapped files, and of what was read to be packed."""

from __future__ import annotations

import re
import sys
from pathlib import Path

import numpy as np
import pytest

from paceline.core.pages import advise, give_back
from paceline.runtimes.kv_cache import Slab

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="reads Linux's /proc")


def resident(array: np.ndarray) -> int:
    """Return the bytes in memory of the mappings that an array reaches into."""
    first, inside, found = array.ctypes.data, False, 0
    for line in Path("/proc/self/smaps").read_text().splitlines():
        if place := re.match(r"([0-9a-f]+)-([0-9a-f]+) ", line):
            begin, end = (int(each, 16) for each in place.groups())
            inside = begin < first + array.nbytes and first < end
        elif inside and line.startswith("Rss:"):
            found += 1024 * int(line.split()[1])
    return found


def test_pages_of_a_file_are_forgotten_and_read_again(tmp_path: Path) -> None:
    path = tmp_path / "numbers"
    path.write_bytes(bytes(range(256)) * 4096)
    array = np.memmap(path, np.uint8, "r")
    before = int(array.sum(dtype=np.int64))
    assert resident(array) == array.nbytes
    advise(array, "forget")
    assert resident(array) == 0
    assert int(array.sum(dtype=np.int64)) == before
    give_back()
    advise(array[:100], "forget")  # less than a page: nothing


def test_a_short_text_takes_little_of_a_large_cache() -> None:
    for more in range(8):  # the system places them at other distances from its large pages
        slab = Slab(layers=8, kv_heads=2, head_dim=64, blocks=2048 + more, dtype=np.float16)
        before = resident(slab.memory)
        for row in range(4):
            keys, values = slab.token(0, row)
            keys[...], values[...] = 1, 2
        assert resident(slab.memory) - before < 1 << 20
