"""Strings beside another engine's tokens: what differs is counted and shown."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

from benchmarks import strings

LLAMA = """
class Llama:
    def __init__(self, path, vocab_only, verbose): pass
    def tokenize(self, text, add_bos, special):
        return [] if text.decode().startswith("Ab") else [len(text)]
"""


def test_strings_are_drawn_by_seed_and_can_be_encoded() -> None:
    drawn = strings.strings(200, 3)
    assert drawn == strings.strings(200, 3) != strings.strings(200, 4)
    assert all(text.encode() and "\0" not in text for text in drawn)


def test_every_difference_is_counted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "llama_cpp.py").write_text(LLAMA, encoding="utf-8")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    monkeypatch.setattr(strings.peers, "command", lambda engine: [sys.executable])

    class Source:
        name, path = "fake", tmp_path

        def tokenizer(self) -> Source:
            return self

        def encode(self, text: str) -> list[int]:
            return [len(text.encode())]

    monkeypatch.setattr(strings, "resolve", lambda name: Source())
    assert strings.main(["--model", "fake", "--count", "400", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    differing = [text for text in strings.strings(400, 0) if text.startswith("Ab")]
    assert found["differing"] == len(differing) > 0
    assert found["examples"][0] == [differing[0], [len(differing[0].encode())], []]


def test_a_model_that_is_not_there_is_named(capsys: pytest.CaptureFixture[str]) -> None:
    assert strings.main(["--model", "nowhere.gguf"]) == 2
    assert "nowhere.gguf" in capsys.readouterr().err
