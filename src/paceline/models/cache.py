"""The directory where downloaded models and things built from them are kept."""

from __future__ import annotations

import os
from pathlib import Path

from paceline.errors import ModelError
from paceline.models.whole_file import whole_file


def cache_dir() -> Path:
    """`PACELINE_CACHE` if set, else the user's cache directory. It need not exist."""
    chosen = os.environ.get("PACELINE_CACHE")
    if chosen:
        return Path(chosen).expanduser()
    import platformdirs

    return Path(platformdirs.user_cache_dir("paceline"))


def make_dir(path: Path) -> Path:
    """Create `path` inside the cache and return it.

    Raises:
        ModelError: the cache cannot be written.
    """
    try:
        path.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise unwritable(path, error) from error
    return path


def unwritable(path: Path, error: OSError) -> ModelError:
    """The error for a cache that cannot be written."""
    reason = error.strerror or str(error)
    return ModelError(
        f"cannot write to {path} ({reason}): free space there or set PACELINE_CACHE to a "
        "writable directory"
    )


def write_atomically(path: Path, text: str) -> None:
    """Write a text file so that readers see all of it or nothing.

    Raises:
        OSError: the directory cannot be written.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    with whole_file(path) as part:
        part.write_text(text, encoding="utf-8")
