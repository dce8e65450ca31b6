"""Decoding state of one sequence: tokens, sampler, randomness and cache."""

from __future__ import annotations

from collections.abc import Sequence as TokenIds
from dataclasses import dataclass, field
from typing import Any

from paceline.core.constraint import Constraint
from paceline.core.metrics import GenerationStats
from paceline.core.types import (
    UNLIMITED,
    Denoising,
    FinishReason,
    SamplingParams,
    Speculation,
    TokenLogprob,
)
from paceline.sampling.randomness import KeyedRandomness, Randomness
from paceline.sampling.sampler import Sampler


@dataclass(eq=False)
class Sequence:
    """One request (or one sample of it) in flight; `id` is unique within its engine.

    `tokens` is prompt and committed tokens. `cache` is None before admission; `reading` is True
    in prefill, until the drafter is open. `sources` names per generated token the drafter that
    proposed it, or None if the target chose it. `work` is what its decoder keeps of it.
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
    prompt_logprobs: list[TokenLogprob] = field(default_factory=list)
    stats: GenerationStats = field(default_factory=GenerationStats)
    finish_reason: FinishReason | None = None
    denoising: Denoising | None = None
    constraint: Constraint | None = None
    work: Any = None

    @classmethod
    def start(
        cls,
        id: int,
        prompt: TokenIds[int],
        params: SamplingParams,
        stream: int = 0,
        speculation: Speculation = UNLIMITED,
        constraint: Constraint | None = None,
        ends: TokenIds[int] = (),
        denoising: Denoising | None = None,
    ) -> Sequence:
        """Create a sequence.

        `stream` separates samples of one request. `ends` are the model's end tokens.
        """
        return cls(
            id,
            list(prompt),
            len(prompt),
            params,
            Sampler(params, prompt, None if constraint is None else constraint.start(), ends),
            KeyedRandomness(params.seed, stream),
            speculation,
            denoising=denoising,
            constraint=constraint,
        )

    @property
    def root(self) -> int:
        """The last committed token, not cached yet."""
        return self.tokens[-1]

    @property
    def unread(self) -> int:
        """Number of tokens before the root that are not cached yet."""
        return len(self.tokens) - 1 - (self.cache.length if self.cache is not None else 0)

    @property
    def prompt(self) -> list[int]:
        return self.tokens[: self.prompt_length]

    @property
    def generated(self) -> list[int]:
        return self.tokens[self.prompt_length :]

    @property
    def unscored(self) -> bool:
        """Whether log-probabilities of prompt tokens were asked for and are not all known."""
        wanted = self.params.prompt_logprobs is not None
        return wanted and len(self.prompt_logprobs) < self.prompt_length - 1

    @property
    def room(self) -> int:
        return self.params.max_new_tokens - (len(self.tokens) - self.prompt_length)
