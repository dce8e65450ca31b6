"""Files that are written whole or not at all."""

from __future__ import annotations

import secrets
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path


@contextmanager
def whole_file(path: Path) -> Iterator[Path]:
    """Write a file under another name; it takes its own once all of it is there.

    So readers see the file as it was or as it will be, and one that could not be finished leaves
    nothing behind, be it for an error or for Ctrl-C. Of several writers the last one wins.

    Args:
        path: of the file; its directory exists.

    Yields:
        Where to write: a path that does not exist yet, in the same directory, since only within a
        file system a file moves in one step.

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
