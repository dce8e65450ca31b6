"""`paceline batch` on the tiny model: files, options, and going on."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from tests.helpers.tiny_model import save_gguf, tiny_config

from paceline.cli.app import run


def test_a_file_is_answered_and_the_same_command_goes_on(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    model = save_gguf(tmp_path / "tiny.gguf", tiny_config())
    source, out = tmp_path / "in.jsonl", tmp_path / "out.jsonl"
    body = {"prompt": [5, 6, 7], "max_tokens": 4, "ignore_eos": True}
    lines = [
        {"custom_id": str(n), "method": "POST", "url": "/v1/completions", "body": body}
        for n in range(3)
    ]
    source.write_text("".join(json.dumps(line) + "\n" for line in lines))
    command = ["batch", str(source), str(out), "--model", str(model), "--json"]
    assert run(command) == 0
    figures = json.loads(capsys.readouterr().out)
    assert figures["answered_now"] == 3
    assert figures["complete"]
    assert figures["completion_tokens"] == 12
    answers = out.read_bytes()
    assert len(answers.splitlines()) == 3
    assert run(command[:-1]) == 0
    assert "0 of 0 answered" in capsys.readouterr().out
    assert out.read_bytes() == answers
    assert run([*command[:2], str(tmp_path), *command[3:]]) == 2
    assert "cannot be written" in capsys.readouterr().err
    assert run([*command[:2], "-", *command[3:]]) == 2
    assert "OUTPUT is a file" in capsys.readouterr().err
    assert run([*command[:2], str(tmp_path / "no" / "out"), *command[3:]]) == 2
    assert "cannot be written" in capsys.readouterr().err
