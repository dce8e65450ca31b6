"""Cache directory of downloaded models and files built from them."""

from __future__ import annotations

import os
from pathlib import Path

from paceline.errors import ModelError
from paceline.models.whole_file import whole_file


def cache_dir() -> Path:
    """Return `PACELINE_CACHE` or the user's cache directory. It need not exist."""
    chosen = os.environ.get("PACELINE_CACHE")
    if chosen:
        return Path(chosen).expanduser()
    import platformdirs

    return Path(platformdirs.user_cache_dir("paceline"))


def make_dir(path: Path) -> Path:
    """Create `path` inside the cache; raises ModelError if it is not writable."""
    try:
        path.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise unwritable(path, error) from error
    return path


def unwritable(path: Path, error: OSError) -> ModelError:
    reason = error.strerror or str(error)
    return ModelError(
        f"cannot write to {path} ({reason}): free space there or set PACELINE_CACHE to a "
        "writable directory"
    )


def write_atomically(path: Path, text: str) -> None:
    """Write a text file atomically, with its directory; raises OSError."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with whole_file(path) as part:
        part.write_text(text, encoding="utf-8")
