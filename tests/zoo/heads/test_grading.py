"""Problems, their numbers, and files that hold none."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from paceline.errors import PromptError
from paceline.zoo.heads.grading import last_number, read_problems


@pytest.mark.parametrize(
    ("text", "number"),
    [
        ("5 and 7, so 12.", 12.0),
        ("Answer: 1,234 apples of 9", 1234.0),
        ("answer: 3\nAnswer: -4.5", -4.5),
        ("none", None),
        ("Answer: none of 3", 3.0),
    ],
)
def test_the_number_that_an_answer_ends_in(text: str, number: float | None) -> None:
    assert last_number(text) == number


def test_problems_are_read_and_graded(tmp_path: Path) -> None:
    path = tmp_path / "problems.jsonl"
    path.write_text(json.dumps({"question": "6 * 7?", "answer": "6 sevens\n#### 42"}) + "\n\n")
    [problem] = read_problems([path])
    assert problem.right == 42
    assert "6 * 7?" in problem.prompt
    assert [problem.grade(text) for text in ("Answer: 42", "Answer: 24", "")] == [1, 0, 0]


@pytest.mark.parametrize(
    "line", ["no json", "[1]", '{"question": "a"}', '{"question": "a", "answer": "none"}', ""]
)
def test_what_holds_no_problem_is_named(tmp_path: Path, line: str) -> None:
    path = tmp_path / "problems.jsonl"
    path.write_text(line + "\n", encoding="utf-8")
    with pytest.raises(PromptError, match="problems"):
        read_problems([path])
    with pytest.raises(PromptError, match="nowhere"):
        read_problems([tmp_path / "nowhere"])
