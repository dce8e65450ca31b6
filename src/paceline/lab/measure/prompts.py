"""Prompts of a bench: Spec-Bench files, an even choice from them, and a built-in mix."""

from __future__ import annotations

import hashlib
import json
import tomllib
from collections.abc import Sequence
from dataclasses import dataclass
from importlib.resources import files
from pathlib import Path

from paceline.core.cache import read_text
from paceline.errors import PromptError


@dataclass(frozen=True, slots=True)
class BenchPrompt:
    """One prompt, or a dialogue whose user turns are known beforehand.

    Attributes:
        sample: number of the text, where a prompt has several: each has randomness of its own.
    """

    question_id: str
    category: str
    turns: tuple[str, ...]
    sample: int = 0


def read_prompts(path: Path) -> list[BenchPrompt]:
    """Read JSONL with `question_id`, `category`, `turns`; PromptError if malformed or empty."""
    said = f"cannot read prompts from {path}"
    lines = read_text(path, said, "give a JSONL file", PromptError).split("\n")
    prompts = [_parse(path, n, line) for n, line in enumerate(lines, 1) if line.strip()]
    if not prompts:
        raise PromptError(f"{path} holds no prompts: give a JSONL file with a prompt on each line")
    return prompts


def digest(content: str) -> str:
    """Return the SHA-256 of a text, in hex."""
    return hashlib.sha256(content.encode("utf-8", "surrogatepass")).hexdigest()


def spread(prompts: Sequence[BenchPrompt], limit: int | None) -> list[BenchPrompt]:
    """Return `limit` prompts round-robin over categories, or all; always the same ones."""
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


_TOLD = tomllib.loads(files("paceline.lab.measure").joinpath("prompts.toml").read_text("utf-8"))


def _filled(text: str) -> str:
    for name, quoted in _TOLD["quoted"].items():
        text = text.replace(f"{{{name}}}", quoted)
    return text


BUILT_IN: tuple[BenchPrompt, ...] = tuple(
    BenchPrompt(f"{category}-{number}", category, (_filled(text),))
    for category, texts in _TOLD["mix"].items()
    for number, text in enumerate(texts, 1)
)

NOISE_TEXT: str = _TOLD["quoted"]["article"]
"""Ordinary text for measuring how logits differ from pass to pass."""

FIDELITY: tuple[str, ...] = tuple(_TOLD["fidelity"]["prompts"])
"""Prompts whose greedy text tells two precisions apart."""
