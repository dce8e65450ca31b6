"""Cache directory of downloaded models and files built from them."""

from __future__ import annotations

import os
import secrets
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from paceline.errors import InvalidOption, ModelError

# Atomic file writes.


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


@contextmanager
def written_file(path: Path, advice: str) -> Iterator[Path]:
    """Write as `whole_file`; raise an InvalidOption that ends in `advice` if that fails."""
    try:
        with whole_file(path) as part:
            yield part
    except OSError as error:
        raise InvalidOption(f"cannot write {path} ({error.strerror or error}): {advice}") from error


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
