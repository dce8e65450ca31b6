"""Compiling kernels: once for each level, and said where it cannot be done."""

from __future__ import annotations

import functools
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest
from tests.runtimes import tiny_cpu

from paceline.errors import InvalidOption, RuntimeUnavailable
from paceline.native import build, library

HASWELL = {"avx2", "fma", "f16c", "bmi2"}
CASCADE_LAKE = HASWELL | {"avx512f", "avx512bw", "avx512dq", "avx512vl", "avx512_vnni"}


@pytest.fixture
def fresh(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Nothing is remembered, the cache is empty, and no library is the package's own."""
    monkeypatch.setenv("PACELINE_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(build, "_name", lambda level: f"paceline-{level}-0123")
    monkeypatch.setattr(build, "library", build.library.__wrapped__)
    for name in ("candidates", "found", "library"):
        monkeypatch.setattr(library, name, functools.cache(getattr(library, name).__wrapped__))


def compiler(folder: Path, script: str) -> str:
    path = folder / "compiler.py"
    path.write_text(script)
    return f"{sys.executable} {path}"


def test_here_they_are_compiled() -> None:
    """Else tests of what is compiled would be left out without anybody's notice."""
    assert library.library() is not None


@pytest.mark.parametrize(
    ("machine", "flags", "expected"),
    [
        ("x86_64", set(), ["portable"]),
        ("x86_64", HASWELL, ["avx2", "portable"]),
        ("AMD64", HASWELL | {"avx_vnni"}, ["avxvnni", "avx2", "portable"]),
        ("x86_64", CASCADE_LAKE, ["avx512", "twin", "avx2", "portable"]),
        ("x86_64", CASCADE_LAKE - {"avx512vl"}, ["avx2", "portable"]),
        ("aarch64", {"asimd"}, ["portable"]),
        ("aarch64", {"asimddp"}, ["dotprod", "portable"]),
        ("aarch64", {"asimddp", "i8mm"}, ["i8mm", "dotprod", "portable"]),
        ("arm64", set(), ["i8mm", "dotprod", "portable"]),
        ("riscv64", HASWELL, ["portable"]),
    ],
)
def test_levels_of_processors(
    machine: str, flags: set[str], expected: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(build.platform, "machine", lambda: machine)
    assert build.levels(flags) == expected


@pytest.mark.usefixtures("fresh")
def test_a_level_can_be_forced(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(build.platform, "machine", lambda: "x86_64")
    monkeypatch.setattr(library.processor, "flags", lambda: frozenset(CASCADE_LAKE))
    assert library.candidates() == ["avx512", "avx2", "portable"]
    for forced in ("avx2", "twin"):
        library.candidates.cache_clear()
        monkeypatch.setenv(build.FORCE, forced)
        assert library.candidates() == [forced]
    for forced, says in (
        ("avx3", "'avx3' .* is unknown: use avx512, "),
        ("i8mm", "lacks instruction set 'i8mm' .*: use avx512, twin, avx2, portable"),
    ):
        library.candidates.cache_clear()
        monkeypatch.setenv(build.FORCE, forced)
        with pytest.raises(InvalidOption, match=says):
            library.candidates()


@pytest.mark.usefixtures("fresh")
def test_a_level_that_cannot_be_had_is_passed_over(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(build.platform, "machine", lambda: "x86_64")
    monkeypatch.setattr(library.processor, "flags", lambda: frozenset(CASCADE_LAKE))
    here = Path("library.so")
    monkeypatch.setattr(build, "library", lambda level: here if level == "avx2" else None)
    assert library.found() == ("avx2", here)
    library.found.cache_clear()
    monkeypatch.setattr(build, "library", lambda level: None)
    assert library.found() is None


@pytest.mark.usefixtures("fresh")
def test_wheels_get_what_a_compiler_knows(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(build.platform, "machine", lambda: "x86_64")
    script = (
        "import sys, pathlib\n"
        "if '-mavxvnni' in sys.argv or '{0}' in sys.argv: sys.exit('error: unrecognized')\n"
        "pathlib.Path(sys.argv[sys.argv.index('-o') + 1]).write_text(str(sys.argv))\n"
    )
    monkeypatch.setenv("CXX", compiler(tmp_path, script.format("none")))
    assert list(build.compile_all(tmp_path / "some")) == ["avxvnni"]
    made = sorted(path.name.split("-")[1] for path in (tmp_path / "some").iterdir())
    assert made == ["avx2", "avx512", "portable"]
    monkeypatch.setenv("CXX", compiler(tmp_path, script.format("-shared")))
    with pytest.raises(subprocess.CalledProcessError):
        build.compile_all(tmp_path / "none")


@pytest.mark.parametrize(
    ("level", "named"),
    [("portable", "-mcpu=baseline"), ("i8mm", "-mcpu=generic+dotprod+i8mm")],
)
def test_ziglang_is_told_the_processor(
    level: str, named: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Else it would compile for the one that it runs on."""
    asked: list[list[str]] = []

    def run(command: list[str], **_: object) -> None:
        asked.append(command)
        Path(command[-1]).write_bytes(b"made")

    monkeypatch.setattr(build.subprocess, "run", run)
    build.compile_level(level, tmp_path, [sys.executable, "-m", "ziglang", "c++"])
    *compiled, linked = ([each for each in command if each.startswith("-mc")] for command in asked)
    assert all(each[-1] == named for each in compiled)
    assert linked == ["-mcpu=baseline"]
    assert not any(each.startswith("-march") for each in asked[0])


def test_a_library_names_its_compiler(tmp_path: Path) -> None:
    found = library.found()
    assert found is not None
    assert build.compiler_of(found[1]).startswith(("GCC: (", "clang version "))
    (tmp_path / "none.so").write_bytes(b"made")
    assert build.compiler_of(tmp_path / "none.so") == "an unknown compiler"


@pytest.mark.usefixtures("fresh")
def test_without_a_compiler(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.delenv("CXX", raising=False)
    monkeypatch.setenv("PATH", "")
    monkeypatch.setitem(sys.modules, "ziglang", None)  # type: ignore[arg-type]
    assert library.library() is None
    assert "install g++, or pip install ziglang, or set CXX" in caplog.text
    monkeypatch.setattr("paceline.runtimes.cpu.target.library", library.library)
    with pytest.raises(RuntimeUnavailable, match="--runtime torch"):
        tiny_cpu.target()
    monkeypatch.setitem(sys.modules, "ziglang", ModuleType("ziglang"))
    assert build._compiler() == [sys.executable, "-m", "ziglang", "c++"]


@pytest.mark.usefixtures("fresh")
def test_a_compiler_that_fails_is_quoted(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    script = "import sys\nsys.exit('x.cpp:1: error: no such type')"
    monkeypatch.setenv("CXX", compiler(tmp_path, script))
    assert build.library("portable") is None
    assert "error: no such type" in caplog.text
    assert not list(tmp_path.rglob("*.so"))


@pytest.mark.usefixtures("fresh")
def test_a_compiler_that_is_not_there(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv("CXX", "/nowhere/c++")
    assert build.library("portable") is None
    assert "/nowhere/c++" in caplog.text


@pytest.mark.usefixtures("fresh")
def test_it_can_be_switched_off(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv(build.SWITCH, "0")
    assert library.library() is None
    assert not [each for each in caplog.records if each.name == build.__name__]


@pytest.mark.usefixtures("fresh")
def test_a_level_is_compiled_once_and_again_when_damaged(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """The compiler writes down that it was to link; what it makes is no library."""
    calls = tmp_path / "calls"
    script = (
        "import sys, pathlib\n"
        "if '-shared' in sys.argv:\n"
        f"    with open({str(calls)!r}, 'a') as file: file.write('.')\n"
        "pathlib.Path(sys.argv[sys.argv.index('-o') + 1]).write_bytes(b'made' * 1000)\n"
    )
    monkeypatch.setenv("CXX", compiler(tmp_path, script))
    first = build.library("portable")
    assert first is not None
    assert build.library("portable") == first
    assert calls.read_text() == "."
    first.write_bytes(first.read_bytes()[:100])
    assert build.library("portable") == first
    assert calls.read_text() == ".."
    assert first.read_bytes() == b"made" * 1000
    assert build.library("avx2") != first
