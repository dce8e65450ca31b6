"""Build the native library, once per machine and change of the sources.

Without a working compiler there is no library: one warning, and callers use the OpenVINO plugin.
"""

from __future__ import annotations

import functools
import hashlib
import logging
import os
import shutil
import subprocess
import tempfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from paceline.core import processor
from paceline.core.cache import cache_dir

# "0" in this environment variable disables the library.
SWITCH = "PACELINE_NATIVE"

_ROOT = Path(__file__).parent
_FLAGS = ("-std=c++17", "-O3", "-march=native", "-fno-math-errno", "-fPIC", "-pthread")
# A compiler that takes longer hangs.
_SECONDS = 300

_LOG = logging.getLogger(__name__)


@functools.cache
def library() -> Path | None:
    """Return the path of the library, compiled if needed; None if that is impossible.

    The compiler is `CXX`, else the first installed of c++, g++ and clang++.
    """
    if os.environ.get(SWITCH) == "0":
        return None
    compiler = _compiler()
    if compiler is None:
        _LOG.warning(
            "no C++ compiler: native kernels are left out, which is slower; install g++ or set CXX"
        )
        return None
    try:
        return _built(compiler)
    except (OSError, subprocess.SubprocessError) as error:
        _LOG.warning(
            "native kernels are left out, which is slower: %s failed (%s)",
            compiler[0],
            _reason(error),
        )
        return None


def _compiler() -> list[str] | None:
    chosen = os.environ.get("CXX", "").split()
    if chosen:
        return chosen
    found = next(filter(None, map(shutil.which, ("c++", "g++", "clang++"))), None)
    return [found] if found else None


def _built(compiler: list[str]) -> Path:
    sources, headers = sorted(_ROOT.rglob("*.cpp")), sorted(_ROOT.rglob("*.hpp"))
    version = subprocess.run(
        [*compiler, "--version"], capture_output=True, check=True, timeout=_SECONDS
    ).stdout
    files = (*sources, *headers)
    parts = [str(path.relative_to(_ROOT)).encode() + path.read_bytes() for path in files]
    parts += [version, " ".join(_FLAGS).encode()]
    parts.append(" ".join(sorted(processor.flags())).encode())
    name, folder = f"paceline-{_digest(b'|'.join(parts))}", cache_dir() / "native"
    for path in folder.glob(f"{name}-*.so"):
        if path == _named(folder, name, path):
            return path
        path.unlink(missing_ok=True)  # cut off or changed: loading it could end the process
    _LOG.info("compiling operations for this processor, once")
    folder.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=folder) as scratch:
        made = _compiled(compiler, sources, Path(scratch))
        path = _named(folder, name, made)
        os.replace(made, path)
    return path


def _compiled(compiler: list[str], sources: list[Path], scratch: Path) -> Path:
    # The largest source first, so that all cores end together.
    ordered = sorted(sources, key=lambda source: source.stat().st_size, reverse=True)
    objects = [str(scratch / f"{number}.o") for number in range(len(ordered))]
    made = scratch / "made.so"

    def run(*arguments: str) -> None:
        command = [*compiler, *_FLAGS, f"-I{_ROOT}", *arguments]
        subprocess.run(command, capture_output=True, check=True, timeout=_SECONDS)

    with ThreadPoolExecutor(os.cpu_count()) as pool:
        list(pool.map(lambda at, to: run("-c", str(at), "-o", to), ordered, objects))
    run("-shared", *objects, "-o", str(made))
    return made


def _digest(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()[:16]


def _named(folder: Path, name: str, library: Path) -> Path:
    # The name holds the digest of the content.
    return folder / f"{name}-{_digest(library.read_bytes())}.so"


def _reason(error: Exception) -> str:
    output = getattr(error, "stderr", None) or b""
    lines = output.decode(errors="replace").strip().splitlines()
    return next((line for line in lines if "error" in line), str(error))
