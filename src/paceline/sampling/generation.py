"""Decoding state of one sequence: tokens, sampler, randomness and cache."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np

from paceline.core.constraint import Constraint
from paceline.core.metrics import GenerationStats
from paceline.core.rows import Placed
from paceline.core.target import Output
from paceline.core.types import (
    UNLIMITED,
    CanvasParams,
    FinishReason,
    LogitArray,
    ProbArray,
    SamplingParams,
    Speculation,
    TokenLogprob,
    TokenTree,
    Verdict,
)
from paceline.sampling.processors import Breakers
from paceline.sampling.randomness import KeyedRandomness, Randomness
from paceline.sampling.sampler import Sampler


@dataclass
class Pooled:
    """State of a text: that of its last token after the final norm, or the mean over all tokens.

    `total` is the sum over the first `count` tokens, float64 `[hidden_size]`, in their order; in
    the end, the state.
    """

    mean: bool
    count: int = 0
    total: ProbArray | None = None

    def add(self, row: LogitArray) -> None:
        state = row.astype(np.float64)
        self.total = state if self.total is None else self.total + state
        self.count += 1

    def end(self, row: LogitArray) -> None:
        """Take the state of the last token."""
        self.add(row)
        assert self.total is not None
        self.total /= self.count


@dataclass(eq=False)
class Generation:
    """One request (or one sample of it) in flight; `id` is unique within its engine.

    `tokens` is prompt and committed tokens. `cache` is None before admission; `reading` is True
    in prefill, until the drafter is open. `open` says that the prompt may still change: it is read,
    and not answered. `window` is of an endless text, as of its cache; 0 without. `sources` names
    per generated token the drafter that proposed it, or None if the target chose it. `work` is what
    its decoder keeps of it. `pooled` is there if the state of its prompt is asked for, in place of
    a text. `speech` is what its text is of, if a model that hears writes it. `pictures` are those
    of its prompt, before the last token: `tokens` has a token of the vocabulary in place of each
    row. `spans` are places of pictures whose rows see one another.
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
    open: bool = False
    window: int = 0
    sources: list[str | None] = field(default_factory=list)
    logprobs: list[TokenLogprob] = field(default_factory=list)
    prompt_logprobs: list[TokenLogprob] = field(default_factory=list)
    stats: GenerationStats = field(default_factory=GenerationStats)
    finish_reason: FinishReason | None = None
    denoising: CanvasParams | None = None
    constraint: Constraint | None = None
    work: Any = None
    pooled: Pooled | None = None
    speech: Any = None
    pictures: Sequence[Placed] = ()
    spans: Sequence[range] = ()

    @classmethod
    def start(
        cls,
        id: int,
        prompt: Sequence[int],
        params: SamplingParams,
        stream: int = 0,
        speculation: Speculation = UNLIMITED,
        constraint: Constraint | None = None,
        ends: Sequence[int] = (),
        denoising: CanvasParams | None = None,
        breakers: Breakers | None = None,
        randomness: Randomness | None = None,
    ) -> Generation:
        """Create a sequence.

        `stream` separates samples of one request. `ends` are the model's end tokens, `breakers` the
        tokens of `dry_sequence_breakers`. `randomness` replaces that of seed and stream.
        """
        draws = randomness or KeyedRandomness(params.seed, stream)
        held = None if constraint is None else constraint.start()
        return cls(
            id,
            list(prompt),
            len(prompt),
            params,
            Sampler(params, prompt, held, ends, draws, breakers),
            draws,
            speculation,
            denoising=denoising,
            constraint=constraint,
        )

    @property
    def root(self) -> int:
        """The last committed token, not cached yet."""
        return self.tokens[-1]

    @property
    def inputs(self) -> list[int]:
        """Tokens as the target reads them: rows of pictures by their own ids."""
        if not self.pictures:
            return self.tokens
        out = list(self.tokens)
        for at, run in self.pictures:
            out[at : at + len(run.places)] = run.ids
        return out

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
        """Whether something is asked for of every prompt token, and is not known of all."""
        pools = self.pooled is not None and self.pooled.mean
        wanted = pools or self.params.prompt_logprobs is not None
        return wanted and self.scored < self.prompt_length - 1

    @property
    def scored(self) -> int:
        """Number of prompt tokens of which that is known."""
        return len(self.prompt_logprobs) if self.pooled is None else self.pooled.count

    @property
    def room(self) -> int:
        return self.params.max_new_tokens - (len(self.tokens) - self.prompt_length)


class VerifiedDraft(NamedTuple):
    """A sequence that holds the tokens of a step, its draft, and what became of it.

    The draft is as verified, and may be smaller than proposed. `output` has its rows first, then
    those of nodes that the verifier added.
    """

    sequence: Generation
    draft: TokenTree
    verdict: Verdict
    output: Output
