"""The kernels of this processor, compiled before any test looks for them in a cache of its own."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

from paceline.native import build, library

_BESIDE = Path(build.__file__).parent / "lib"  # ignored by git; names hold the sources' hash


def pytest_configure() -> None:
    library.library()
    found = library.found()
    if found is None or (_BESIDE / found[1].name).exists():
        return
    _BESIDE.mkdir(exist_ok=True)
    part = _BESIDE / f"{found[1].name}.{os.getpid()}"
    shutil.copy(found[1], part)
    part.replace(_BESIDE / found[1].name)
