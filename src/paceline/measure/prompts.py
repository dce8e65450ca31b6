"""Prompts of a bench: Spec-Bench files, an even choice from them, and a built-in mix."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from paceline.errors import PromptError


@dataclass(frozen=True, slots=True)
class BenchPrompt:
    """One prompt, or a dialogue whose user turns are known beforehand."""

    question_id: str
    category: str
    turns: tuple[str, ...]


def read_prompts(path: Path) -> list[BenchPrompt]:
    """Read JSONL with `question_id`, `category`, `turns`; PromptError if malformed or empty."""
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


# A small mix of prompts for a bench without a prompt file.

_ARTICLE = (
    "The town of Ellerby has run its own bakery since 1954. When the last private baker retired, "
    "forty families pooled their savings and bought the ovens. For decades the bakery opened at "
    "five in the morning and sold rye bread, rolls and, on Saturdays, plum cake. In 2009 the roof "
    "of the bakery fell in after a storm, and for a winter the bread was baked in the school "
    "kitchen. The families rebuilt the roof themselves. Today the bakery employs nine people, "
    "delivers to six villages by electric van and trains two apprentices a year. Its rye bread "
    "still follows the recipe of 1954."
)
_FUNCTION = """\
def total(orders):
    result = 0
    for order in orders:
        if order["paid"]:
            result = result + order["price"] * order["count"]
    return result
"""
_LETTER = (
    "Dear Mr Olsen, thank you for your order of 12 March. Unfortunately the blue chairs are out "
    "of stock until April. We can send you the green chairs at once, or the blue chairs in five "
    "weeks. Please tell us which chairs you prefer. Kind regards, Mara Lind"
)

_TEXTS: dict[str, tuple[str, ...]] = {
    "writing": (
        "Write a short story about a clockmaker who repairs a clock that runs backwards.",
        "Write a blog post about spending a rainy weekend in a small mountain village.",
    ),
    "qa": (
        "Why does the moon always show the same side to the earth?",
        "What is the difference between a virus and a bacterium?",
    ),
    "summarization": (
        f"Summarise this article in three sentences:\n\n{_ARTICLE}",
        f"List the years in this article and what happened in each of them:\n\n{_ARTICLE}",
    ),
    "code": (
        f"Rename the variable `result` to `amount` and add a docstring:\n\n{_FUNCTION}",
        "Write a Python class `Stack` with the methods push, pop, peek and is_empty, with tests.",
    ),
    "math": (
        "A shop sells pens at 3 for 2 euros. How much do 21 pens cost? Show every step.",
        "Anna is twice as old as Ben. In six years their ages add up to 42. How old is each of "
        "them now? Show every step.",
    ),
    "rewriting": (
        f"Correct nothing and repeat this letter, but sign it as Jon Berg:\n\n{_LETTER}",
        f"Rewrite this letter for three tables instead of the chairs:\n\n{_LETTER}",
    ),
}

BUILT_IN: tuple[BenchPrompt, ...] = tuple(
    BenchPrompt(f"{category}-{number}", category, (text,))
    for category, texts in _TEXTS.items()
    for number, text in enumerate(texts, 1)
)

NOISE_TEXT = _ARTICLE
"""Ordinary text for measuring how logits differ from pass to pass."""
