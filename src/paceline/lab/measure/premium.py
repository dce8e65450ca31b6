"""What a language costs: tokens of a text, and passes, beside those of another language.

A premium is tokens of a text over tokens of the same text in a reference language (Petrov et al.,
2305.15425; Arnett et al., 2510.21909). A reader waits for passes of the model, not for tokens:
drafts give a part of the premium back.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from paceline.core.cache import read_text
from paceline.core.types import SamplingParams
from paceline.engine.engine import Engine
from paceline.errors import PromptError
from paceline.models.text import Tokenizer

READ = 512
"""Tokens before the middle of a text that are read, at most, before it is continued."""


@dataclass(frozen=True, slots=True)
class TextCost:
    """Characters, bytes of UTF-8 and tokens of a text."""

    characters: int
    bytes: int
    tokens: int

    def as_dict(self) -> dict[str, Any]:
        """Return counts, and tokens by character."""
        counts = {"characters": self.characters, "bytes": self.bytes, "tokens": self.tokens}
        return counts | {"tokens_per_character": round(self.tokens / self.characters, 4)}


def read_language(path: Path) -> str:
    """Return the text of a file; raises PromptError if it cannot be read or says nothing."""
    text = read_text(path, f"cannot read {path}", "give a text in UTF-8", PromptError).strip()
    if not text:
        raise PromptError(f"{path} holds no text: give one of some hundred characters")
    return text


def cost(tokenizer: Tokenizer, text: str) -> TextCost:
    """Count a text, without the tokens around it."""
    return TextCost(len(text), len(text.encode("utf-8", "replace")), len(tokenizer.plain(text)))


def tokens_per_forward(
    engine: Engine, texts: Sequence[str], new_tokens: int, temperature: float
) -> float:
    """Continue each text from its middle; return tokens committed by forward of the target.

    An answer that ends of itself counts as far as it goes.
    """
    committed = forwards = 0
    for seed, text in enumerate(texts):
        read = engine.tokenizer.prompt(text[: (len(text) + 1) // 2], raw=True)[-READ:]
        params = SamplingParams(max_new_tokens=new_tokens, temperature=temperature, seed=seed)
        done = engine.generate(read, params)
        committed += done.stats.committed_tokens
        forwards += done.stats.target_forwards
    return committed / max(1, forwards)


def report(
    engine: Engine, text: str, reference: str | None = None, new_tokens: int = 96
) -> dict[str, Any]:
    """Return what `text` costs, and beside the same text in another language, if it is given.

    `passes` is the premium in passes: with this engine's drafts, beside the reference without.
    """
    found = cost(engine.tokenizer, text)
    drafted = {
        name: round(tokens_per_forward(engine, [text], new_tokens, temperature), 3)
        for name, temperature in (("greedy", 0.0), ("temperature 1", 1.0))
    }
    out = found.as_dict() | {"tokens_per_forward": drafted}
    if reference is not None:
        premium = found.tokens / cost(engine.tokenizer, reference).tokens
        passes = {name: round(premium / each, 3) for name, each in drafted.items()}
        out |= {"premium": round(premium, 3), "passes": passes}
    return out
