"""Build the native library, once per instruction set: with the wheel, or on first use.

Every level has the same source and gives the same numbers. `PACELINE_ISA` forces one. The build of
wheels loads this file by itself (`hatch_build.py`): it imports nothing of the package at the top.
"""

from __future__ import annotations

import functools
import hashlib
import logging
import os
import platform
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import NamedTuple

# "0" in this environment variable disables the library; the name of a level forces it; "address" or
# "thread" compiles it with that sanitizer (the former with that of undefined behaviour), for tests.
SWITCH, FORCE, SANITIZE = "PACELINE_NATIVE", "PACELINE_ISA", "PACELINE_SANITIZE"

_ROOT = Path(__file__).parent
_FLAGS = ("-std=c++17", "-O3", "-ffp-contract=off", "-fno-math-errno", "-fPIC", "-pthread")
_CHECKED = ("-O1", "-g1", "-fno-omit-frame-pointer", "-fno-sanitize-recover=all")
_SANITIZERS = {
    # Without what takes minutes to compile, and calls in place of checks, which do too.
    "address": (
        *_CHECKED,
        "-fsanitize=address,undefined",
        "-fno-sanitize=null,object-size,alignment",
        "--param",
        "asan-instrumentation-with-call-threshold=0",
    ),
    "thread": (*_CHECKED, "-fsanitize=thread"),
}
# A compiler that takes longer hangs.
_SECONDS = 1800

_LOG = logging.getLogger(__name__)


class IsaLevel(NamedTuple):
    """Compiler flags of an instruction set, and the processor's flags that it needs."""

    machine: str
    flags: tuple[str, ...]
    needs: frozenset[str]


_V3 = frozenset({"avx2", "fma", "f16c", "bmi2"})
_V4 = _V3 | {"avx512f", "avx512bw", "avx512dq", "avx512vl", "avx512_vnni"}
_AVX2 = ("-mavx2", "-mfma", "-mf16c", "-mbmi", "-mbmi2", "-mlzcnt", "-mpopcnt")
_AVX512 = (*_AVX2, "-mavx512f", "-mavx512bw", "-mavx512dq", "-mavx512vl", "-mavx512vnni")

_ARMV8 = "-march=armv8.2-a"

# The best first. "twin" runs AVX-VNNI's code where only AVX-512 has its instruction: for tests.
LEVELS = {
    "avx512": IsaLevel("x86_64", _AVX512, _V4),
    "avxvnni": IsaLevel("x86_64", (*_AVX2, "-mavxvnni"), _V3 | {"avx_vnni"}),
    "twin": IsaLevel("x86_64", (*_AVX512, "-DPACELINE_TWIN"), _V4),
    "avx2": IsaLevel("x86_64", _AVX2, _V3),
    "i8mm": IsaLevel("aarch64", (f"{_ARMV8}+dotprod+i8mm",), frozenset({"asimddp", "i8mm"})),
    "dotprod": IsaLevel("aarch64", (f"{_ARMV8}+dotprod",), frozenset({"asimddp"})),
    "portable": IsaLevel("", (), frozenset()),
}


def machine() -> str:
    name = platform.machine().lower()
    return {"amd64": "x86_64", "arm64": "aarch64"}.get(name, name)


def levels(flags: Iterable[str]) -> list[str]:
    """Return the levels that a processor with these flags runs, the best first."""
    known, here = frozenset(flags), machine()
    if here == "aarch64" and not known:  # not Linux: every such Mac has both
        known = frozenset({"asimddp", "i8mm"})
    return [
        name
        for name, level in LEVELS.items()
        if level.machine in ("", here) and level.needs <= known
    ]


@functools.cache
def library(level: str) -> Path | None:
    """Return the library of a level: the package's, or compiled; None if that is impossible.

    The compiler is `CXX`, else the first installed of c++, g++ and clang++, else ziglang.
    """
    name = _name(level)
    for folder in (_ROOT / "lib", _cache()):
        for path in folder.glob(f"{name}-*.so"):
            if path == _named(folder, name, path):
                return path
            path.unlink(missing_ok=True)  # cut off or changed: loading it could end the process
    compiler = _compiler()
    if compiler is None:
        _LOG.warning("no C++ compiler: install g++, or pip install ziglang, or set CXX")
        return None
    try:
        _LOG.info("compiling operations for this processor, once")
        return compile_level(level, _cache(), compiler)
    except (OSError, subprocess.SubprocessError) as error:
        _LOG.warning("native kernels do not compile: %s failed (%s)", compiler[0], _reason(error))
        return None


def compile_all(folder: Path) -> dict[str, Exception]:
    """Compile into an empty folder every level that a machine of this kind may need.

    Returns:
        What went wrong, by level: an old compiler may not know the newest.

    Raises:
        OSError, SubprocessError: there is no compiler, or it fails at every level.
    """
    wanted = [n for n, level in LEVELS.items() if level.machine in ("", machine()) and n != "twin"]
    failed: dict[str, Exception] = {}
    with ThreadPoolExecutor(os.cpu_count()) as pool, ThreadPoolExecutor(len(wanted)) as by_level:
        made = {level: by_level.submit(compile_level, level, folder, pool=pool) for level in wanted}
        for level, each in made.items():
            try:
                each.result()
            except (OSError, subprocess.SubprocessError) as error:
                failed[level] = error
    if len(failed) == len(wanted):
        raise failed[wanted[-1]]
    return failed


def compile_level(
    level: str,
    folder: Path,
    compiler: list[str] | None = None,
    pool: ThreadPoolExecutor | None = None,
) -> Path:
    """Compile a level into a folder, on the threads of a pool, and return the library's path.

    Raises:
        OSError, SubprocessError: there is no compiler, or it fails.
    """
    compiler = compiler or _compiler()
    if compiler is None:
        raise OSError("no C++ compiler: install g++, or pip install ziglang, or set CXX")
    name = _name(level)
    folder.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=folder) as scratch:
        with ThreadPoolExecutor(os.cpu_count()) as own:
            made = _compiled(compiler, level, Path(scratch), pool or own)
        path = _named(folder, name, made)
        os.replace(made, path)
    return path


def compiler_of(library: Path) -> str:
    """Return the compiler that a library names in its file."""
    content = library.read_bytes()
    for pattern in (rb"clang version [\d.]+", rb"GCC: \([^)]*\) [\d.]+"):
        if found := re.search(pattern, content):
            return found[0].decode()
    return "an unknown compiler"


def has_compiler() -> bool:
    """Return whether this machine has one; asked by `hatch_build.py`."""
    return _compiler() is not None


def _cache() -> Path:
    from paceline.core.cache import cache_dir

    return cache_dir() / "native"


def _compiler() -> list[str] | None:
    chosen = os.environ.get("CXX", "").split()
    if chosen:
        return chosen
    found = next(filter(None, map(shutil.which, ("c++", "g++", "clang++"))), None)
    if found:
        return [found]
    try:
        import ziglang  # noqa: F401
    except ImportError:
        return None
    return [sys.executable, "-m", "ziglang", "c++"]


def _name(level: str) -> str:
    files = sorted([*_ROOT.rglob("*.cpp"), *_ROOT.rglob("*.hpp")])
    parts = [str(path.relative_to(_ROOT)).encode() + path.read_bytes() for path in files]
    parts.append(" ".join((*_FLAGS, *LEVELS[level].flags, *_sanitizer())).encode())
    return f"paceline-{level}-{_digest(b'|'.join(parts))}"


def _sanitizer() -> tuple[str, ...]:
    return _SANITIZERS.get(os.environ.get(SANITIZE, ""), ())


def _compiled(compiler: list[str], level: str, scratch: Path, pool: ThreadPoolExecutor) -> Path:
    # The largest first, so that all cores end together.
    sources = sorted(_ROOT.rglob("*.cpp"), key=lambda path: (-path.stat().st_size, path))
    objects = [str(scratch / f"{number}.o") for number in range(len(sources))]
    made = scratch / "made.so"
    common: tuple[str, ...] = (*_FLAGS, *_sanitizer())
    own = LEVELS[level].flags
    if "ziglang" in compiler:  # has other names, and would take the processor that it runs on
        common = "-mcpu=baseline", *common
        own = tuple(each.replace(_ARMV8, "-mcpu=generic") for each in own)

    def run(*arguments: str) -> None:
        command = [*compiler, *common, *arguments]
        subprocess.run(command, capture_output=True, check=True, timeout=_SECONDS)

    def compile_one(source: Path, to: str) -> None:
        run(*own, f"-I{_ROOT}", "-c", str(source), "-o", to)

    list(pool.map(compile_one, sources, objects))
    # For any processor: ziglang compiles its C++ library here, once for all levels.
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
