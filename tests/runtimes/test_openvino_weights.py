"""Prepared weights on disk: whatever happened to the file, what is loaded is right."""

from __future__ import annotations

import logging
import resource
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file
from tests.helpers import tiny_model as tiny

from paceline.models.source import DirectorySource
from paceline.runtimes import weights as openvino_weights
from paceline.runtimes.weights import load_prepared, prepare

Tensors = dict[str, np.ndarray]


@pytest.fixture
def source(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> DirectorySource:
    monkeypatch.setenv("PACELINE_CACHE", str(tmp_path / "cache"))
    return DirectorySource(tiny.save_directory(tmp_path / "model", tiny.tiny_config()))


def stored(source: DirectorySource) -> Path:
    """Load once, so that the file is there."""
    load_prepared(source, "int8")
    [path] = (source.path.parent / "cache" / "prepared").iterdir()
    return path


def right(found: Tensors, source: DirectorySource) -> bool:
    expected = prepare(source.config, source.weights(), "int8")
    return found.keys() == expected.keys() and all(
        found[name].dtype == expected[name].dtype and np.array_equal(found[name], expected[name])
        for name in expected
    )


def flip(path: Path, place: int) -> None:
    """Change one bit."""
    content = bytearray(path.read_bytes())
    content[place] ^= 1
    path.write_bytes(content)


def swap_shape(path: Path) -> None:
    """Change the header alone: a matrix turned over, of as many bytes."""
    content = path.read_bytes()
    assert content.count(b"[32,48]") == 2
    path.write_bytes(content.replace(b"[32,48]", b"[48,32]"))


DAMAGES: dict[str, Any] = {
    "empty": lambda path: path.write_bytes(b""),
    "cut short": lambda path: path.write_bytes(path.read_bytes()[:-1]),
    "cut in the header": lambda path: path.write_bytes(path.read_bytes()[:100]),
    "a bit in the numbers": lambda path: flip(path, -1),
    "a bit in the middle": lambda path: flip(path, path.stat().st_size // 2),
    "another shape": swap_shape,
    "another version's": lambda path: save_file(load_file(path), path, {"key": "elsewhere-v1"}),
    "without a note": lambda path: save_file(load_file(path), path),
    "no such file format": lambda path: path.write_text("hello"),
    "a folder": lambda path: (path.unlink(), path.mkdir()),
}


@pytest.mark.parametrize("damage", DAMAGES)
def test_a_damaged_file_is_said_and_made_again(
    damage: str, source: DirectorySource, caplog: pytest.LogCaptureFixture
) -> None:
    path = stored(source)
    DAMAGES[damage](path)
    assert right(load_prepared(source, "int8"), source)
    assert path.name in caplog.messages[0]
    assert "making them again" in caplog.messages[0]
    assert not any("\n" in message for message in caplog.messages)
    if damage != "a folder":
        assert len(caplog.messages) == 1
        caplog.clear()
        assert right(load_prepared(source, "int8"), source)
        assert not caplog.messages, "the file is whole again"


def test_a_whole_file_is_read(source: DirectorySource, monkeypatch: pytest.MonkeyPatch) -> None:
    stored(source)
    monkeypatch.setattr(openvino_weights, "prepare", None)
    assert right(load_prepared(source, "int8"), source)


def test_the_file_of_another_model_is_not_taken(
    source: DirectorySource, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path = stored(source)
    other = DirectorySource(tiny.save_directory(tmp_path / "other", tiny.tiny_config(), seed=1))
    shutil.copy(path, path.with_name(path.name.replace(source.fingerprint, other.fingerprint)))
    assert right(load_prepared(other, "int8"), other)
    assert source.fingerprint in caplog.messages[0]


def test_a_cache_that_cannot_be_written_is_said(
    source: DirectorySource, caplog: pytest.LogCaptureFixture, tmp_path: Path
) -> None:
    (tmp_path / "cache").write_text("a file where the folder would be")
    assert right(load_prepared(source, "int8"), source)
    [message] = caplog.messages
    assert "PACELINE_CACHE" in message
    assert str(tmp_path / "cache" / "prepared") in message


FULL = """
import logging, resource, sys
from pathlib import Path
from paceline.models.source import DirectorySource
from paceline.runtimes.weights import load_prepared
resource.setrlimit(resource.RLIMIT_FSIZE, (8192, 8192))
logging.basicConfig(format="%(message)s")
print(len(load_prepared(DirectorySource(Path(sys.argv[1])), "int8")))
"""


@pytest.mark.skipif(not hasattr(resource, "RLIMIT_FSIZE"), reason="no such limit here")
def test_a_disk_that_fills_up_while_writing_is_said(source: DirectorySource) -> None:
    """The system itself refuses to let the file grow, as it does on a full disk."""
    done = subprocess.run(
        [sys.executable, "-c", FULL, str(source.path)], capture_output=True, text=True, check=True
    )
    assert int(done.stdout) == len(prepare(source.config, source.weights(), "int8"))
    [line] = done.stderr.splitlines()
    assert "PACELINE_CACHE" in line
    assert list((source.path.parent / "cache" / "prepared").iterdir()) == []


def test_nothing_is_said_when_all_is_well(
    source: DirectorySource, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.WARNING):
        stored(source)
        load_prepared(source, "int8")
    assert not caplog.messages
