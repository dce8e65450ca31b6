"""Extent of an audit: prompts, samples, level."""

from __future__ import annotations

import math
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from paceline.audit.prompts import LAW_PROMPTS
from paceline.errors import InvalidOption

# Logits: the error of int8 quantization.
NEAR_TIE = 0.5


@dataclass(frozen=True, slots=True)
class Plan:
    """Extent of an audit. 0 prompts or samples omit a test.

    Attributes:
        prompts: JSONL file of chat prompts for the greedy test; None for the built-in ones.
        law_prompts: raw texts for the distribution tests.
        samples: per text and setting of speculation.
        tokens: length of sampled continuations, at least 2: the last token is never drafted.
        level: familywise false alarm probability of the distribution tests.
        near_tie: logit gap up to which a greedy difference is a near-tie.
    """

    prompts: Path | None = None
    greedy_prompts: int = 12
    greedy_tokens: int = 64
    law_prompts: tuple[str, ...] = LAW_PROMPTS[:3]
    samples: int = 300
    tokens: int = 4
    temperature: float = 1.0
    level: float = 0.01
    near_tie: float = NEAR_TIE
    seed: int = 0

    def __post_init__(self) -> None:
        def check(good: bool, name: str, rule: str) -> None:
            if not good:
                raise InvalidOption(f"{name} must be {rule}, not {getattr(self, name)!r}")

        check(self.greedy_prompts >= 0, "greedy_prompts", "0 (none) or more")
        check(self.greedy_tokens >= 2, "greedy_tokens", "2 or more")
        samples = self.samples
        check(samples == 0 or 20 <= samples <= 10**6, "samples", "0 (none), or 20 to a million")
        check(2 <= self.tokens <= 64, "tokens", "from 2 to 64")
        temperature = self.temperature
        check(math.isfinite(temperature) and temperature > 0, "temperature", "more than 0")
        check(0 < self.level < 0.5, "level", "between 0 and 0.5")
        check(self.near_tie >= 0, "near_tie", "0 or more")
        check(self.seed >= 0, "seed", "0 or more")

    def as_dict(self) -> dict[str, Any]:
        values = {name: getattr(self, name) for name in self.__slots__}
        return values | {"prompts": None if self.prompts is None else str(self.prompts)}
