"""Problems whose answers are right or wrong: word problems that end in a number (GSM8K), and Python
functions with tests.
"""

from __future__ import annotations

import json
import re
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

from paceline.core.cache import read_text
from paceline.errors import PromptError

ASK = "{}\nThink step by step. End with a line 'Answer: NUMBER'."
ASK_CODE = "{}\nAnswer with one code block that holds the whole function."

_NUMBER = re.compile(r"-?\d[\d,]*(?:\.\d+)?")
_BLOCK = re.compile(r"```[^\n`]*\n(.*?)(?:```|\Z)", re.DOTALL)

SECONDS = 5
"""Time that a function and its tests have."""

_MEMORY = 1 << 29

# What is written to the pipe says that the tests were reached and passed, which the exit status of
# a program that ends itself does not. Its own output goes nowhere, and it can write no file.
_RUN = f"""
import os, resource, sys
for what, most in ("CPU", {SECONDS}), ("AS", {_MEMORY}), ("FSIZE", 0):
    resource.setrlimit(getattr(resource, "RLIMIT_" + what), (most, most))
told, nowhere = os.dup(1), os.open(os.devnull, os.O_WRONLY)
os.dup2(nowhere, 1), os.dup2(nowhere, 2)
exec(compile(sys.stdin.read(), "answer", "exec"), {{"__name__": "answer"}})
os.write(told, b"passed")
"""


class NumberProblem(NamedTuple):
    """A prompt, and the number that a right answer ends in."""

    prompt: str
    right: float

    def grade(self, text: str) -> float:
        """Return 1 for a right answer, else 0."""
        found = last_number(text)
        return float(found is not None and abs(found - self.right) < 1e-6)


class CodeProblem(NamedTuple):
    """A prompt, and the statements that a right function passes."""

    prompt: str
    tests: tuple[str, ...]

    def grade(self, text: str) -> float:
        """Return 1 if the code of an answer passes all tests, else 0.

        It runs in a process of its own, in an empty folder, with limits of time and memory. That
        stops mistakes, not malice: grade no answers of models that you do not trust.
        """
        return float(passes(python_of(text), self.tests))


Problem = NumberProblem | CodeProblem


def last_number(text: str) -> float | None:
    """Return the number behind the last "answer:", else the last number of all."""
    parts = re.split("answer:", text, flags=re.IGNORECASE)
    found = _NUMBER.findall(parts[-1])
    if not found:
        return None
    return float((found[0] if len(parts) > 1 else found[-1]).replace(",", ""))


def python_of(text: str) -> str:
    """Return the first code block with a function, else the text as it stands."""
    return next((block for block in _BLOCK.findall(text) if "def " in block), text)


def passes(code: str, tests: Sequence[str]) -> bool:
    """Return whether tests behind some code pass within the limits; POSIX only."""
    with tempfile.TemporaryDirectory() as folder:
        try:
            done = subprocess.run(
                [sys.executable, "-I", "-S", "-c", _RUN],
                input="\n".join([code, *tests]).encode("utf-8", "replace"),
                stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL,
                cwd=folder,
                env={},
                timeout=2 * SECONDS,
                check=False,
            )
        except subprocess.TimeoutExpired:
            return False
    return done.stdout == b"passed"


def read_problems(paths: Sequence[Path]) -> list[Problem]:
    """Read JSONL with `question`, and with `tests` or an `answer`.

    An answer ends in "#### NUMBER" or in a number; tests are Python statements.

    Raises PromptError if a file cannot be read, or a line holds no problem.
    """
    out = []
    for path in paths:
        said = f"cannot read problems from {path}"
        content = read_text(path, said, "give a JSONL file", PromptError)
        for number, line in enumerate(content.split("\n"), 1):
            if not line.strip():
                continue
            try:
                found = _problem(json.loads(line))
            except (ValueError, KeyError, TypeError, AttributeError):
                found = None
            if found is None:
                raise PromptError(
                    f"line {number} of {path} holds no problem: each line is an object with "
                    "question, and with tests or an answer that ends in a number"
                )
            out.append(found)
    if not out:
        raise PromptError("the files hold no problems: give JSONL with question and answer")
    return out


def _problem(entry: Any) -> Problem | None:
    question, tests = entry["question"], entry.get("tests")
    if not isinstance(question, str):
        return None
    if tests is not None:
        known = isinstance(tests, list) and tests and all(isinstance(each, str) for each in tests)
        return CodeProblem(ASK_CODE.format(question), tuple(tests)) if known else None
    right = last_number(str(entry["answer"]).rpartition("####")[-1])
    return None if right is None else NumberProblem(ASK.format(question), right)
