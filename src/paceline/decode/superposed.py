"""Superposed decoding: several drafts of a continuation from one pass per token.

Shen et al., "Superposed Decoding" (NeurIPS 2024). The input of a step is the sum of the drafts'
last token embeddings, weighted by the drafts' probabilities; its logits, shared by all drafts,
extend each of them, and n-gram models tell the drafts apart. It is lossy: a pass over a mixture is
only close to a pass over each draft.

Where the paper mixes n-gram models of fixed orders by weights, the longest order that knows a
continuation counts here, as in stupid back-off (Brants et al. 2007).
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

MISS = 200.0
"""What a continuation that no n-gram knows costs, in nats."""

_BACK_OFF = math.log(0.4)

Context = tuple[int, int]
"""A state of the n-gram model's automaton, and how many tokens of the text belong to it."""


@runtime_checkable
class Superposing(Protocol):
    """A target that takes weighted sums of token embeddings as input."""

    def forward_superposed(
        self, cache: Any, tokens: TokenIds[int], weights: TokenIds[float]
    ) -> LogitArray:
        """Append one position to a cache; float32 `[vocabulary]` logits after it."""
        ...


class NGrams:
    """How often what followed what in some texts, for contexts of 1 to `depth` tokens."""

    def __init__(self, texts: Iterable[TokenIds[int]], depth: int = 5) -> None:
        """Count."""
        self._texts = Automaton(depth)
        for text in texts:
            self._texts.begin()
            self._texts.extend(text)

    def context(self, tokens: TokenIds[int]) -> Context:
        """The longest known context at the end of `tokens`."""
        context = (ROOT_STATE, 0)
        for token in tokens[-self._texts.depth :]:
            context = self.follow(context, token)
        return context

    def follow(self, context: Context, token: int) -> Context:
        """The context after one more token."""
        return self._texts.follow(*context, token)

    def logprob(self, context: Context, token: int) -> float:
        """Log of the share of `token` after the longest context that it followed; `-MISS` if it
        followed none. Shorter contexts that occurred more often cost a factor of 0.4 each."""
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
    """One continuation.

    Attributes:
        tokens: the continuation; an end token, if one came, is the last.
        score: sum of interpolated log-probabilities, in nats.
        context: for the n-gram model.
        ended: whether an end token came.
    """

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
    """The `k` best continuations that one superposed pass per token finds.

    Args:
        target: implements `Superposing`.
        prompt: token ids, at least one; with `tokens` no longer than the context.
        k: number of continuations.
        tokens: length of each in tokens, unless an end token comes before.
        ngrams: tells drafts apart.
        alpha: weight of `ngrams`, from 0 (the target alone) to 1. Without `ngrams` it must be 0.
        end: tokens that end a continuation.

    Returns:
        Drafts, best first, and the number of forwards: one per token.
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
    """float64, the drafts' probabilities as shares of their sum."""
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
    """The `k` best of every draft with each of the `k` likeliest tokens, and of ended drafts."""
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
