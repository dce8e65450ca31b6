"""The script that audits every engine: what it keeps, what it runs again, what it leaves out."""

from __future__ import annotations

import importlib
import json
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from paceline.errors import EngineFailed, InvalidOption
from paceline.lab.audit import named as peers
from paceline.lab.audit.checks import AuditExtent
from paceline.lab.audit.engine import CallableEngine
from paceline.lab.audit.outside import run
from paceline.lab.audit.report import Report

NAMES = ("paceline", "genai-model-int8-u8", "vllm-cpu-ngram", "paceline-block")


@pytest.fixture
def script(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[ModuleType]:
    """The script, with a coarse model that nobody made."""
    monkeypatch.syspath_prepend(str(peers.scripts()))
    monkeypatch.setenv("PACELINE_CACHE", str(tmp_path / "cache"))
    module = importlib.import_module("audit")
    monkeypatch.setattr(module, "coarse_gguf", lambda source, folder: Path("coarse.gguf"))
    monkeypatch.setattr(module, "resolve", lambda name: type("Source", (), {"path": name}))
    yield module
    for name in ("audit", "model_files"):
        sys.modules.pop(name, None)


def test_results_are_kept_and_not_run_again(
    script: ModuleType,
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    asked: list[tuple[str, Mapping[str, str]]] = []

    def audited(
        engine: str, plan: AuditExtent, options: Mapping[str, str], progress: Any
    ) -> Report:
        asked.append((engine, options))
        if engine == "genai":
            raise EngineFailed("engine 'genai' says: no")
        if engine == "vllm-cpu":
            raise InvalidOption("engine 'vllm-cpu' has no environment")
        return run(CallableEngine(lambda ask: [(1, 2)] * len(ask.seeds)), plan)

    monkeypatch.setattr(script, "run", audited)
    few = ("--samples", "20", "--greedy-prompts", "1")
    monkeypatch.setattr(sys, "argv", ["audit", "--out", str(tmp_path), *few, "--only", *NAMES])
    script.main()
    assert [engine for engine, _ in asked] == ["paceline", "genai", "vllm-cpu", "paceline"]
    assert asked[-1][1]["draft_model"] == "coarse.gguf"
    kept = {path.stem for path in tmp_path.glob("*.json")}
    assert kept == {"paceline", "genai-model-int8-u8", "paceline-block"}
    assert json.loads((tmp_path / "paceline.json").read_text())["settings"]["samples"] == 20
    first = capsys.readouterr().out
    assert "[3/4] vllm-cpu-ngram: left out: engine 'vllm-cpu' has no environment" in first
    assert (tmp_path / "summary.md").read_text().strip() in first

    asked.clear()
    script.main()
    assert [engine for engine, _ in asked] == ["vllm-cpu"], "what was left out is tried again"
    second = capsys.readouterr().out
    assert second.split("\n\n", 1)[1] == first.split("\n\n", 1)[1]


def test_every_configuration_names_an_engine_that_can_be_driven(script: ModuleType) -> None:
    engines = {engine for engine, _ in script.CONFIGURATIONS.values()}
    assert engines == {"paceline", *peers.PEERS}
    recipes = importlib.import_module("make").RECIPES
    sys.modules.pop("make")
    assert set(recipes) == {*peers.PEERS, "speech"}
    for engine in peers.PEERS:
        assert (peers.scripts() / f"{engine.replace('-', '_')}_peer.py").exists()
