"""Atomic file writes."""

from __future__ import annotations

import secrets
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path


@contextmanager
def whole_file(path: Path) -> Iterator[Path]:
    """Yield a temporary path in the same directory; move it to `path` on success.

    On an error or Ctrl-C the temporary file is removed. Of several writers the last one wins.

    Raises:
        OSError: the file cannot be moved into place.
    """
    # By chance, not by process: containers share folders, and each counts processes from one.
    part = path.with_name(f"{path.name}.{secrets.token_hex(8)}.part")
    try:
        yield part
        part.replace(path)
    finally:
        with suppress(OSError):  # the error that brought us here says more
            part.unlink(missing_ok=True)
