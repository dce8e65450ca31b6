"""Superposed decoding (Shen et al., NeurIPS 2024, arXiv:2405.18400): k drafts per forward. Lossy.

The input is the sum of the drafts' last token embeddings, weighted by their probabilities. N-gram
models separate the drafts, here by stupid back-off (Brants et al. 2007) instead of fixed weights.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from collections.abc import Sequence as TokenIds
from dataclasses import dataclass
from typing import Any, Protocol, runtime_checkable

import numpy as np

from paceline.drafters.automaton import ROOT_STATE, Automaton
from paceline.target import Pass, Target
from paceline.types import LogitArray, ProbArray

# Cost in nats of a continuation that no n-gram contains.
MISS = 200.0

_BACK_OFF = math.log(0.4)

# State of the n-gram automaton, and how many tokens of the text it covers.
Context = tuple[int, int]


@runtime_checkable
class Superposing(Protocol):
    """A target that accepts weighted sums of token embeddings as input."""

    def forward_superposed(
        self, cache: Any, tokens: TokenIds[int], weights: TokenIds[float]
    ) -> LogitArray:
        """Append one position to a cache; return float32 `[vocabulary]` logits after it."""
        ...


class NGrams:
    """N-gram counts of texts, for contexts of 1 to `depth` tokens."""

    def __init__(self, texts: Iterable[TokenIds[int]], depth: int = 5) -> None:
        self._texts = Automaton(depth)
        for text in texts:
            self._texts.begin()
            self._texts.extend(text)

    def context(self, tokens: TokenIds[int]) -> Context:
        """Return the longest known context at the end of `tokens`."""
        context = (ROOT_STATE, 0)
        for token in tokens[-self._texts.depth :]:
            context = self.follow(context, token)
        return context

    def follow(self, context: Context, token: int) -> Context:
        return self._texts.follow(*context, token)

    def logprob(self, context: Context, token: int) -> float:
        """Return the stupid back-off log score of `token`, factor 0.4; `-MISS` if unseen."""
        texts, (state, _), discount = self._texts, context, 0.0
        while state != ROOT_STATE:
            after = texts.step(state, token)
            if after:
                return discount + math.log(texts.count[after] / texts.followed(state))
            state, _ = texts.back_off(state)
            discount += _BACK_OFF
        return -MISS


@dataclass(frozen=True, slots=True)
class Draft:
    """One continuation; `score` is the sum of interpolated log-probabilities, in nats."""

    tokens: tuple[int, ...]
    score: float
    context: Context
    ended: bool = False


def superpose(
    target: Target,
    prompt: TokenIds[int],
    k: int,
    tokens: int,
    *,
    ngrams: NGrams | None = None,
    alpha: float = 0.0,
    end: TokenIds[int] = (),
) -> tuple[list[Draft], int]:
    """Return the `k` best continuations by superposed decoding, and the number of forwards.

    `prompt` has at least one token, and fits the context with `tokens`. `alpha` weights `ngrams`,
    from 0 (target alone) to 1; it must be 0 without `ngrams`.
    """
    assert isinstance(target, Superposing)
    start = ngrams.context(prompt) if ngrams else (ROOT_STATE, 0)
    drafts, forwards = [Draft((), 0.0, start)], 0
    cache = target.open()
    try:
        target.prefill(cache, prompt[:-1])
        while forwards < tokens and not all(draft.ended for draft in drafts):
            if forwards:
                live = [draft for draft in drafts if not draft.ended]
                last = [draft.tokens[-1] for draft in live]
                logits = target.forward_superposed(cache, last, weights(live).tolist())
            else:
                [output] = target.forward([Pass(cache, prompt[-1:])])
                target.keep(cache, 1, ())
                logits = output.logits[0]
            forwards += 1
            drafts = _extend(drafts, logits, k, ngrams, alpha, frozenset(end))
    finally:
        target.release(cache)
    return drafts, forwards


def weights(drafts: TokenIds[Draft]) -> ProbArray:
    """Return the drafts' probabilities, normalised, float64."""
    scores = np.array([draft.score for draft in drafts])
    shares = np.exp(scores - scores.max())
    normalised: ProbArray = shares / shares.sum()
    return normalised


def _extend(
    drafts: TokenIds[Draft],
    logits: LogitArray,
    k: int,
    ngrams: NGrams | None,
    alpha: float,
    end: frozenset[int],
) -> list[Draft]:
    exact = logits.astype(np.float64)
    logprobs = exact - exact.max()
    logprobs -= np.log(np.exp(logprobs).sum())
    likeliest = np.argsort(-logprobs, kind="stable")[:k].tolist()
    out = []
    for draft in drafts:
        if draft.ended:
            out.append(draft)
            continue
        for token in likeliest:
            gain = float(logprobs[token])
            context = draft.context
            if ngrams is not None:
                gain = (1 - alpha) * gain + alpha * ngrams.logprob(context, token)
                context = ngrams.follow(context, token)
            out.append(Draft((*draft.tokens, token), draft.score + gain, context, token in end))
    return sorted(out, key=lambda draft: -draft.score)[:k]
