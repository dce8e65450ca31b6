"""Prompts of a bench: files in the format of Spec-Bench, and an even choice from them."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from paceline.errors import PromptError


@dataclass(frozen=True, slots=True)
class BenchPrompt:
    """One prompt, or a dialogue whose user turns are known beforehand.

    Attributes:
        question_id: as in its file.
        category: kind of task.
        turns: user turns, at least one.
    """

    question_id: str
    category: str
    turns: tuple[str, ...]


def read_prompts(path: Path) -> list[BenchPrompt]:
    """Read a JSONL file with `question_id`, `category` and `turns` on every line.

    Raises:
        PromptError: the file cannot be read, holds no prompt, or a line is malformed.
    """
    try:
        lines = path.read_text(encoding="utf-8").split("\n")
    except (OSError, UnicodeDecodeError) as error:
        reason = getattr(error, "strerror", None) or "not UTF-8 text"
        raise PromptError(f"cannot read prompts from {path} ({reason}): give a JSONL file") from (
            error
        )
    prompts = [_parse(path, n, line) for n, line in enumerate(lines, 1) if line.strip()]
    if not prompts:
        raise PromptError(f"{path} holds no prompts: give a JSONL file with a prompt on each line")
    return prompts


def spread(prompts: Sequence[BenchPrompt], limit: int | None) -> list[BenchPrompt]:
    """`limit` prompts taken round-robin over categories, or all; always the same ones."""
    by_category: dict[str, list[BenchPrompt]] = {}
    for prompt in prompts:
        by_category.setdefault(prompt.category, []).append(prompt)
    deepest = max(map(len, by_category.values()), default=0)
    order = [group[i] for i in range(deepest) for group in by_category.values() if i < len(group)]
    return order[:limit]


def _parse(path: Path, number: int, line: str) -> BenchPrompt:
    def wrong(reason: str) -> PromptError:
        return PromptError(
            f'line {number} of {path} {reason}: each line is {{"question_id": ..., "category": '
            '"...", "turns": ["..."]}'
        )

    try:
        entry = json.loads(line)
    except ValueError as error:
        raise wrong("is not JSON") from error
    if not isinstance(entry, dict):
        raise wrong("is not an object")
    turns, category = entry.get("turns"), entry.get("category")
    if not isinstance(category, str) or not category or category == "all":
        raise wrong("has no usable category")
    if not isinstance(turns, list) or not turns:
        raise wrong("has no turns")
    if not all(isinstance(turn, str) and turn.strip() for turn in turns):
        raise wrong("has a turn that is empty or not text")
    return BenchPrompt(str(entry.get("question_id", number)), category, tuple(turns))
