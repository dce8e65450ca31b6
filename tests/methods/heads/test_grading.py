"""Problems, their numbers, code and its tests, and files that hold none."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from paceline.errors import PromptError
from paceline.methods.heads import grading
from paceline.methods.heads.grading import (
    CodeProblem,
    NumberProblem,
    last_number,
    python_of,
    read_problems,
)

CODE = Path(__file__).parents[3] / "benchmarks" / "problems" / "code.jsonl"
SOLVED = [json.loads(line) for line in CODE.read_text(encoding="utf-8").splitlines()]


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
    assert isinstance(problem, NumberProblem)
    assert problem.right == 42
    assert "6 * 7?" in problem.prompt
    assert [problem.grade(text) for text in ("Answer: 42", "Answer: 24", "")] == [1, 0, 0]


@pytest.mark.parametrize(
    "line",
    [
        *("no json", "[1]", '{"question": "a"}', '{"question": "a", "answer": "none"}', ""),
        *('{"question": "a", "tests": []}', '{"question": "a", "tests": "assert True"}'),
    ],
)
def test_what_holds_no_problem_is_named(tmp_path: Path, line: str) -> None:
    path = tmp_path / "problems.jsonl"
    path.write_text(line + "\n", encoding="utf-8")
    with pytest.raises(PromptError, match="problems"):
        read_problems([path])
    with pytest.raises(PromptError, match="nowhere"):
        read_problems([tmp_path / "nowhere"])


# Code with tests:


def fails(solution: str) -> str:
    """The same function, whose body does nothing."""
    return f"{solution.partition(':')[0]}: return None"


def test_there_are_problems_enough_and_no_two_alike() -> None:
    problems = read_problems([CODE])
    assert len(problems) == len({each.prompt for each in problems}) >= 40
    assert all(isinstance(each, CodeProblem) for each in problems)


@pytest.mark.parametrize("solved", SOLVED, ids=lambda each: each["solution"][4:].split("(")[0])
def test_a_solution_passes_and_an_idle_function_does_not(solved: dict[str, str]) -> None:
    problem = CodeProblem("", tuple(solved["tests"]))
    # Both in one process for speed: the second must fail at a test, and not before.
    idle = [fails(solved["solution"]), "try:", *(f"    {each}" for each in problem.tests)]
    idle += ["except (AssertionError, TypeError): pass", "else: raise SystemExit"]
    both = "\n".join([solved["solution"], *problem.tests, *idle])
    assert problem.grade(f"Here it is:\n```python\n{solved['solution']}\n```\nDone.") == 1
    assert grading.passes(both, ())


@pytest.mark.parametrize(
    "code",
    [
        "def add(a, b): return a - b",
        "raise SystemExit(0)",
        "import os; os._exit(0)",
        "print('passed')",
        "def add(a, b",
        "def add(a, b):\n    while True: pass",
        "def add(a, b):\n    return len([0] * 10**9) and a + b",
        "def add(a, b):\n    with open('x', 'w') as f: f.write('x')\n    return a + b",
        "",
    ],
)
def test_what_does_not_pass(code: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(grading, "_RUN", grading._RUN.replace('"CPU", 5', '"CPU", 1'))
    assert CodeProblem("", ("assert add(2, 3) == 5",)).grade(code) == 0


def test_graders_that_are_wrong_are_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """Negative controls: one that trusts the exit status, and one that runs no tests."""
    problem = CodeProblem("", ("assert add(2, 3) == 5",))
    wrong = "import sys\ndef add(a, b): return a - b\n"
    with monkeypatch.context() as patched:
        run = grading._RUN.replace('os.write(told, b"passed")', "")
        patched.setattr(grading, "_RUN", f"import os; os.write(1, b'passed'){run}")
        assert problem.grade("raise SystemExit(0)") == 1
    assert CodeProblem("", ()).grade(wrong) == 1
    assert problem.grade(wrong) == problem.grade("raise SystemExit(0)") == 0


def test_code_is_the_first_block_with_a_function() -> None:
    text = "Run:\n```\npip\n```\nThen\n```python\ndef f(): pass\n```\n```python\ndef g(): pass\n```"
    assert python_of(text) == "def f(): pass\n"
    assert python_of("```py\ndef f(): return 1") == "def f(): return 1"
    assert python_of("def f(): pass") == "def f(): pass"


def test_answers_run_away_from_home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SECRET", "1")
    monkeypatch.chdir(tmp_path)
    tests = ("import os", "assert 'SECRET' not in os.environ", "assert not os.listdir('.')")
    assert CodeProblem("", tests).grade("def f(): pass") == 1
