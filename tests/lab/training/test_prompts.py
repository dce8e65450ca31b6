"""Prompt files of several shapes."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from paceline.errors import PromptError
from paceline.lab.training.data import prompts_digest, read_texts


def write(path: Path, *entries: Any) -> Path:
    path.write_text("\n".join(json.dumps(entry) for entry in entries) + "\n\n")
    return path


def test_all_shapes_are_read_in_order(tmp_path: Path) -> None:
    first = write(
        tmp_path / "a.jsonl",
        {"turns": ["one ", "two"], "question_id": 3},
        {"question": "What?", "answer": "that"},
        {"instruction": "Do it.", "instances": [{"input": "with this", "output": "done"}]},
        {"instruction": "Do it.", "instances": [{"input": "", "output": "done"}]},
    )
    second = write(tmp_path / "b.jsonl", {"prompt": "last"})
    texts = read_texts([first, second])
    assert texts == ["one", "What?", "Do it.\n\nwith this", "Do it.", "last"]
    assert prompts_digest(texts) != prompts_digest(texts[:-1])
    assert prompts_digest(["ab", "c"]) != prompts_digest(["a", "bc"])


@pytest.mark.parametrize("entry", ["text", 3, {}, {"turns": []}, {"question": " "}, {"prompt": 3}])
def test_a_line_without_a_prompt_is_named(entry: Any, tmp_path: Path) -> None:
    path = write(tmp_path / "a.jsonl", {"prompt": "good"}, entry)
    with pytest.raises(PromptError, match=r"line 2 of .*a.jsonl holds no prompt"):
        read_texts([path])


def test_what_cannot_be_read_is_named(tmp_path: Path) -> None:
    with pytest.raises(PromptError, match="cannot read prompts from"):
        read_texts([tmp_path / "missing"])
    (tmp_path / "binary").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(PromptError, match="not UTF-8"):
        read_texts([tmp_path / "binary"])
    (tmp_path / "broken").write_text("{no json\n")
    with pytest.raises(PromptError, match="line 1"):
        read_texts([tmp_path / "broken"])
    (tmp_path / "empty").write_text("\n")
    with pytest.raises(PromptError, match="empty"):
        read_texts([tmp_path / "empty"])
