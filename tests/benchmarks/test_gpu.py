"""The one command for a GPU, tried on the CPU with small shapes."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("transformers")
torch = pytest.importorskip("torch")

from benchmarks import gpu  # noqa: E402


def run(monkeypatch: pytest.MonkeyPatch, out: Path, *words: str) -> int:
    monkeypatch.setattr(sys, "argv", ["gpu", "--out", str(out), *words])
    return gpu.main()


def test_parts_are_told_and_one_that_fails_takes_no_other_with_it(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    def broken(place: Any) -> dict[str, Any]:
        raise RuntimeError("out of memory")

    monkeypatch.setattr(gpu, "TOKENS", 8)
    monkeypatch.setattr(gpu, "PROMPTS", 2)
    monkeypatch.setattr(gpu, "ROWS", (1, 2))
    monkeypatch.setitem(gpu.PARTS, "speed", broken)
    parts = ("--device", "cpu", "--parts", "identity", "speed", "rows", "host")
    assert run(monkeypatch, tmp_path, *parts) == 1
    found = json.loads((tmp_path / "gpu.json").read_text())
    assert found["identity"]["suffix-automaton"] == {"equal": 2, "of": 2, "first_difference": []}
    assert found["speed"]["error"] == "RuntimeError: out of memory"
    assert found["rows"]["1b"]["c"]["1"] == 1.0
    assert 0 < found["host"]["135m"]["host"] < 1
    assert run(monkeypatch, tmp_path, "--device", "cpu", "--seconds", "0", "--parts", "rows") == 1
    assert "no time" in json.loads((tmp_path / "gpu.json").read_text())["rows"]["error"]


def test_another_text_is_counted(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    made = gpu.make_engine

    class Other:
        def __init__(self, engine: Any) -> None:
            self._engine = engine

        def generate(self, ids: Any, **asked: Any) -> Any:
            class Text:
                token_ids = (*self._engine.generate(ids, **asked).token_ids[:-1], -1)

            return Text()

    def make_engine(loaded: Any, drafter: str, **more: Any) -> Any:
        engine = made(loaded, drafter=drafter, **more)
        return engine if drafter == "none" else Other(engine)

    monkeypatch.setattr(gpu, "TOKENS", 8)
    monkeypatch.setattr(gpu, "PROMPTS", 2)
    monkeypatch.setattr(gpu, "make_engine", make_engine)
    run(monkeypatch, tmp_path, "--device", "cpu", "--parts", "identity")
    found = json.loads((tmp_path / "gpu.json").read_text())["identity"]
    assert found["prompt-lookup"] == {"equal": 0, "of": 2, "first_difference": [7, 7]}


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
def test_without_a_gpu_it_says_so(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(monkeypatch, tmp_path) == 2
    assert "no CUDA device" in capsys.readouterr().err
    assert not list(tmp_path.iterdir())
