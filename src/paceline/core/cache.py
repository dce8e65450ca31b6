"""Cache directory of downloaded models, and files that are written whole or line by line."""

from __future__ import annotations

import os
import secrets
import stat
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from io import FileIO
from pathlib import Path
from typing import TypeVar

from paceline.errors import InvalidOption, ModelError, PacelineError

T = TypeVar("T")


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


def read_text(
    path: Path, said: str, advice: str, error: type[PacelineError] = InvalidOption
) -> str:
    """Return a text file; raise `error` as "`said` (reason): `advice`" if that fails."""
    try:
        return path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as found:
        reason = getattr(found, "strerror", None) or "not UTF-8 text"
        raise error(f"{said} ({reason}): {advice}") from found


_FAR = 2**40


class Locked(InvalidOption):
    """Another process writes the file."""


def open_lines(path: Path, read: Callable[[list[bytes]], T]) -> tuple[FileIO, T]:
    """Open a file to append lines to, locked until it is closed or the process ends.

    Returns it, without a buffer, and what `read` makes of its whole lines. A last line that was
    not finished is then cut off; a file that `read` refuses is left as it is.

    Raises:
        InvalidOption: the file cannot be written, or another process writes it (Locked).
    """
    try:
        file = path.open("a+b", buffering=0)
    except OSError as error:
        raise InvalidOption(
            f"{path} cannot be written ({error.strerror or error}): give another file"
        ) from error
    try:
        data = b""
        if _on_disk(file):
            if not _lock(file):
                raise Locked(
                    f"{path} is being written by another run: wait for its end, or give another "
                    "file"
                )
            file.seek(0)
            data = file.read()
        whole = data[: data.rfind(b"\n") + 1]
        found = read(whole.splitlines())
        if len(whole) < len(data):
            file.truncate(len(whole))
    except BaseException:
        file.close()
        raise
    return file, found


def append(file: FileIO, data: bytes) -> None:
    """Write all of `data`, and wait until the disk has it; raises OSError."""
    while data:
        data = data[file.write(data) :]
    if _on_disk(file):
        os.fsync(file.fileno())


def _on_disk(file: FileIO) -> bool:
    # Devices and pipes hold no lines, and cannot be waited for.
    return stat.S_ISREG(os.fstat(file.fileno()).st_mode)


def _lock(file: FileIO) -> bool:
    # The system's own lock, which ends with the process however that ends.
    try:
        if sys.platform == "win32":
            import msvcrt

            file.seek(_FAR)  # Windows locks bytes against reading too: one that is never written
            msvcrt.locking(file.fileno(), msvcrt.LK_NBLCK, 1)
        else:
            import fcntl

            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        return False
    return True
