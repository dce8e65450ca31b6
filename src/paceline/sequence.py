"""A sequence being generated: its tokens, its law, its place in the target's cache."""

from __future__ import annotations

from collections.abc import Sequence as TokenIds
from dataclasses import dataclass, field
from typing import Any

from paceline.metrics import GenerationStats
from paceline.randomness import KeyedRandomness, Randomness
from paceline.sampling import Sampler
from paceline.types import UNLIMITED, FinishReason, SamplingParams, Speculation, TokenLogprob


@dataclass(eq=False)
class Sequence:
    """One request (or one sample of it) in flight.

    Attributes:
        id: unique within its engine.
        tokens: prompt and committed tokens.
        prompt_length: how many of them are the prompt.
        params: sampling parameters and stop conditions.
        sampler: logits to law, with this sequence's context.
        randomness: all draws of this sequence.
        speculation: what the request says about drafting for it.
        cache: the target's cache; None before admission.
        reading: admitted, but not all of `unread` is cached yet, or no drafter has seen it.
        sources: per generated token, the drafter that proposed it, or None if the target chose it.
        logprobs: per generated token, if asked for.
        stats: counters.
        finish_reason: None while running.
    """

    id: int
    tokens: list[int]
    prompt_length: int
    params: SamplingParams
    sampler: Sampler
    randomness: Randomness
    speculation: Speculation = UNLIMITED
    cache: Any = None
    reading: bool = False
    sources: list[str | None] = field(default_factory=list)
    logprobs: list[TokenLogprob] = field(default_factory=list)
    stats: GenerationStats = field(default_factory=GenerationStats)
    finish_reason: FinishReason | None = None

    @classmethod
    def start(
        cls,
        id: int,
        prompt: TokenIds[int],
        params: SamplingParams,
        stream: int = 0,
        speculation: Speculation = UNLIMITED,
    ) -> Sequence:
        """A fresh sequence; `stream` tells samples of one request apart."""
        return cls(
            id,
            list(prompt),
            len(prompt),
            params,
            Sampler(params, prompt),
            KeyedRandomness(params.seed, stream),
            speculation,
        )

    @property
    def root(self) -> int:
        """The last committed token, not cached yet."""
        return self.tokens[-1]

    @property
    def unread(self) -> int:
        """Tokens before the root that are not cached yet."""
        return len(self.tokens) - 1 - (self.cache.length if self.cache is not None else 0)

    @property
    def generated(self) -> list[int]:
        """Tokens after the prompt."""
        return self.tokens[self.prompt_length :]

    @property
    def room(self) -> int:
        """How many tokens may still be generated."""
        return self.params.max_new_tokens - (len(self.tokens) - self.prompt_length)
