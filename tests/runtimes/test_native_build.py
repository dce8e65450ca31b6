"""Compiling operations: where it cannot be done, all goes on with the plugin's; it is said."""

from __future__ import annotations

import shutil
import sys
from pathlib import Path

import pytest

pytest.importorskip("openvino")

from tests.runtimes import tiny_openvino

from paceline.core import processor
from paceline.errors import InvalidOption, RuntimeUnavailable
from paceline.native import build, library


@pytest.fixture(autouse=True)
def fresh(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Nothing is remembered, and the cache is empty."""
    monkeypatch.setenv("PACELINE_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(build, "library", build.library.__wrapped__)
    monkeypatch.setattr(library, "compiled", build.library)
    monkeypatch.setattr(library, "library", library.library.__wrapped__)


def compiler(folder: Path, script: str) -> str:
    path = folder / "compiler.py"
    path.write_text(script)
    return f"{sys.executable} {path}"


@pytest.mark.parametrize(
    "compiler", [name for name in ("g++", "clang++") if shutil.which(name)][:1]
)
def test_where_it_can_be_compiled_it_is(compiler: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Else tests of what is compiled would be left out without anybody's notice."""
    monkeypatch.setenv("CXX", compiler)
    flags = processor.flags()
    assert library.has_float_products() == ("avx512f" in flags)
    assert library.has_int8_products() == ({"avx512_vnni", "avx512bw"} <= set(flags))


def test_without_a_compiler(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.delenv("CXX", raising=False)
    monkeypatch.setenv("PATH", "")
    assert tiny_openvino.target().capabilities.attention == "plugin"
    assert "install g++ or set CXX" in caplog.text
    with pytest.raises(RuntimeUnavailable, match="C\\+\\+ compiler"):
        tiny_openvino.target(attention="paths")


def test_a_compiler_that_fails_is_quoted(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    script = (
        "import sys\nif '--version' not in sys.argv:\n    sys.exit('x.cpp:1: error: no such type')"
    )
    monkeypatch.setenv("CXX", compiler(tmp_path, script))
    assert build.library() is None
    assert "error: no such type" in caplog.text
    assert not list(tmp_path.rglob("*.so"))


def test_a_compiler_that_is_not_there(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv("CXX", "/nowhere/c++")
    assert build.library() is None
    assert "/nowhere/c++" in caplog.text


def test_it_can_be_switched_off(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv(build.SWITCH, "0")
    assert tiny_openvino.target().capabilities.attention == "plugin"
    assert not [each for each in caplog.records if each.name == build.__name__]


def test_it_is_compiled_once_and_again_when_damaged(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """The compiler writes down that it was to link; what it makes is no library."""
    calls = tmp_path / "calls"
    script = (
        "import sys, pathlib\n"
        "if '--version' in sys.argv: sys.exit()\n"
        "if '-shared' in sys.argv:\n"
        f"    with open({str(calls)!r}, 'a') as file: file.write('.')\n"
        "pathlib.Path(sys.argv[sys.argv.index('-o') + 1]).write_bytes(b'made' * 1000)\n"
    )
    monkeypatch.setenv("CXX", compiler(tmp_path, script))
    first = build.library()
    assert first is not None
    assert build.library() == first
    assert calls.read_text() == "."
    first.write_bytes(first.read_bytes()[:100])
    assert build.library() == first
    assert calls.read_text() == ".."
    assert first.read_bytes() == b"made" * 1000


def test_an_unknown_attention_is_named() -> None:
    with pytest.raises(InvalidOption, match="'flash' is unknown: use paths or plugin"):
        tiny_openvino.target(attention="flash")
