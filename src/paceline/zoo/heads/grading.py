"""Problems whose answers are right or wrong: word problems that end in a number (GSM8K)."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from paceline.errors import PromptError

ASK = "{}\nThink step by step. End with a line 'Answer: NUMBER'."

_NUMBER = re.compile(r"-?\d[\d,]*(?:\.\d+)?")


class Problem(NamedTuple):
    """A prompt, and the number that a right answer ends in."""

    prompt: str
    right: float

    def grade(self, text: str) -> float:
        """Return 1 for a right answer, else 0."""
        found = last_number(text)
        return float(found is not None and abs(found - self.right) < 1e-6)


def last_number(text: str) -> float | None:
    """Return the number behind the last "answer:", else the last number of all."""
    parts = re.split("answer:", text, flags=re.IGNORECASE)
    found = _NUMBER.findall(parts[-1])
    if not found:
        return None
    return float((found[0] if len(parts) > 1 else found[-1]).replace(",", ""))


def read_problems(paths: Sequence[Path]) -> list[Problem]:
    """Read JSONL with `question` and `answer`, which ends in "#### NUMBER" or in a number.

    Raises PromptError if a file cannot be read, or a line holds no problem.
    """
    out = []
    for path in paths:
        try:
            lines = path.read_text(encoding="utf-8").split("\n")
        except (OSError, UnicodeDecodeError) as error:
            reason = getattr(error, "strerror", None) or "not UTF-8 text"
            raise PromptError(f"cannot read problems from {path} ({reason})") from error
        for number, line in enumerate(lines, 1):
            if not line.strip():
                continue
            try:
                entry = json.loads(line)
                right = last_number(str(entry["answer"]).rpartition("####")[-1])
                question = entry["question"]
            except (ValueError, KeyError, TypeError) as error:
                right, question = None, error
            if right is None or not isinstance(question, str):
                raise PromptError(
                    f"line {number} of {path} holds no problem: each line is an object with "
                    "question, and an answer that ends in a number"
                )
            out.append(Problem(ASK.format(question), right))
    if not out:
        raise PromptError("the files hold no problems: give JSONL with question and answer")
    return out
