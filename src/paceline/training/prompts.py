"""User turns from JSONL files of several common shapes."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from pathlib import Path

from paceline.errors import PromptError

_KEYS = ("prompt", "question", "instruction")


def read_texts(paths: Sequence[Path]) -> list[str]:
    """One text per line: `turns` (its first), `prompt`, `question`, or `instruction` and input.

    Raises:
        PromptError: a file cannot be read, a line holds no prompt, or there is none at all.
    """
    texts = []
    for path in paths:
        try:
            lines = path.read_text(encoding="utf-8").split("\n")
        except (OSError, UnicodeDecodeError) as error:
            reason = getattr(error, "strerror", None) or "not UTF-8 text"
            raise PromptError(
                f"cannot read prompts from {path} ({reason}): give a JSONL file"
            ) from (error)
        for number, line in enumerate(lines, 1):
            if line.strip():
                text = _text(line)
                if not text:
                    raise PromptError(
                        f"line {number} of {path} holds no prompt: each line is an object with "
                        f"turns, {', '.join(_KEYS)}"
                    )
                texts.append(text)
    if not texts:
        raise PromptError(
            "the prompt files are empty: give a JSONL file with a prompt on each line"
        )
    return texts


def digest(texts: Sequence[str]) -> str:
    """Short hash of the prompts, to tell one set of them from another."""
    return hashlib.sha256("\0".join(texts).encode("utf-8", "surrogatepass")).hexdigest()[:16]


def _text(line: str) -> str:
    """The prompt on a line; empty if there is none."""
    try:
        entry = json.loads(line)
    except ValueError:
        return ""
    if not isinstance(entry, dict):
        return ""
    turns = entry.get("turns")
    candidates = [turns[0] if isinstance(turns, list) and turns else None, *map(entry.get, _KEYS)]
    text = next((each for each in candidates if isinstance(each, str) and each.strip()), "")
    instances = entry.get("instances")
    if text and isinstance(instances, list) and instances and isinstance(instances[0], dict):
        text += f"\n\n{instances[0].get('input') or ''}"
    return text.strip()
