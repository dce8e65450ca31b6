"""AArch64 under emulation: cross-compiled, run by an Arm Python; the same golden hashes.

`.ci/aarch64 FOLDER` fetches qemu, Python and its packages; PACELINE_AARCH64 names the folder.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from tests.native.test_fingerprint import GOLDEN, SCRIPT

import paceline
from paceline.native import build

FOLDER = Path(os.environ.get("PACELINE_AARCH64", ""))
pytestmark = pytest.mark.skipif(
    not FOLDER.name, reason="PACELINE_AARCH64 names no folder that .ci/aarch64 made"
)
CROSS = "aarch64-linux-gnu-g++"
ZIG = [sys.executable, "-m", "ziglang", "c++", "-target", "aarch64-linux-gnu.2.31"]
# Emulated processors, and the level that each runs by itself.
PROCESSORS = {"max": "i8mm", "neoverse-n1": "dotprod", "cortex-a72": "portable"}


def emulated(processor: str, cache: Path) -> tuple[str, dict[str, str]]:
    """The level that the emulated processor chose, and its fingerprints."""
    paths = (FOLDER / "packages", Path(paceline.__file__).parent.parent)
    given = {
        "PYTHONPATH": ":".join(map(str, paths)),
        "PACELINE_CACHE": str(cache),
        "OPENBLAS_NUM_THREADS": "1",
    }
    command = [str(FOLDER / "qemu-aarch64"), "-cpu", processor, "-L", str(FOLDER / "root")]
    for name, value in given.items():
        command += ["-E", f"{name}={value}"]
    command += [str(FOLDER / "python"), "-c", SCRIPT.format(before="")]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert not done.returncode, done.stderr
    used, found = json.loads(done.stdout)
    return used, found


@pytest.mark.parametrize("processor", PROCESSORS)
def test_arm_processors_give_the_golden_ones(processor: str, tmp_path: Path) -> None:
    level = PROCESSORS[processor]
    compiler = [CROSS] if shutil.which(CROSS) else ZIG
    library = build.compile_level(level, tmp_path / "native", compiler)
    used, found = emulated(processor, tmp_path)
    assert used == level
    assert library.is_file(), "it was loaded, not taken for a damaged one"
    assert found == GOLDEN["built_in"]
