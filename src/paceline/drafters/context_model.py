"""An n-gram model of the target, learned while it decodes.

What the target said after the last few tokens, whether it was followed or not, is a guess of what
it will say after the same tokens. Contexts of several lengths are kept. For a guess the longest
known one offers its tokens first, then the next shorter one for the cases in which all those fail,
and so on (prediction by partial matching). How often such an offer comes true is not what the
averages say: it is learned per kind of offer, by the length of the context, how often that was
seen, and the share of the token among those not offered yet.

Contexts are kept in C++ where that can be compiled (`native_context_model.py`), else in Python
(`plain_context_model.py`); both draft alike.
"""

from __future__ import annotations

from collections.abc import Sequence as List
from typing import Self

import numpy as np

from paceline.drafters.best_first import Guess, Offer
from paceline.drafters.context_table import Context, Law
from paceline.drafters.statistics import HitRates
from paceline.native.library import library
from paceline.types import Budget, LogitArray, ProbArray, TokenTree

PROMPT_WEIGHT = 0.1
"""What a token of the prompt counts for beside a law of the target's."""

WEIGHTS = (0.9, 1.9)
"""Contexts known from prompts alone, from one law, from several."""

SHARES = (0.05, 0.1, 0.2, 0.35, 0.5, 0.7, 0.85, 0.95)
"""Kinds of offers by share."""

TAIL = 0.03
"""Share that tokens beyond the likeliest are taken to have."""

# Start values of hit rates by length of context, 1 to 3, and by share, as measured on greedy texts
# of the default model: for contexts known from prompts alone, and for those known from laws.
_FROM_PROMPTS = (
    (0.02, 0.02, 0.02, 0.05, 0.15, 0.20, 0.20, 0.20, 0.30),
    (0.05, 0.05, 0.05, 0.13, 0.14, 0.30, 0.30, 0.35, 0.43),
    (0.05, 0.05, 0.06, 0.08, 0.20, 0.40, 0.40, 0.40, 0.80),
)
_FROM_LAWS = (
    (0.01, 0.04, 0.05, 0.09, 0.14, 0.19, 0.30, 0.40, 0.70),
    (0.05, 0.08, 0.12, 0.17, 0.30, 0.45, 0.50, 0.75, 0.80),
    (0.06, 0.10, 0.12, 0.28, 0.41, 0.60, 0.82, 0.90, 0.95),
)


def _prior(order: int) -> ProbArray:
    """float64 `[order, 3, 9]`, hit rates to start from; longer contexts are as good as the last."""
    lengths = [min(length, len(_FROM_LAWS) - 1) for length in range(order)]
    return np.array([[_FROM_PROMPTS[i], _FROM_LAWS[i], _FROM_LAWS[i]] for i in lengths])


class ContextModel:
    """Guesses of the next token from contexts of 1 to `order` tokens.

    Attributes:
        rates: hit rates of the offers.
    """

    def __new__(cls, *_: object) -> Self:
        """Of the kind that is to be had here, unless a kind is asked for."""
        return super().__new__(_kind() if cls is ContextModel else cls)

    def __init__(self, order: int, capacity: int) -> None:
        """Know nothing.

        Args:
            order: tokens of the longest context.
            capacity: most contexts to keep.
        """
        self._order = order
        self.rates = HitRates(_prior(order), weight=30.0)

    def tail(self, tokens: List[int]) -> Context:
        """The context at the end of `tokens`."""
        return tuple(tokens[-self._order :])

    def follow(self, context: Context, token: int) -> Context:
        """The context behind `token`."""
        return (*context, token)[-self._order :]

    def read(self, tokens: List[int], begin: int, weight: float) -> None:
        """Learn from text: the tokens from position `begin` on came after those before them."""
        raise NotImplementedError

    def recycle(self, tokens: List[int], draft: TokenTree, logits: LogitArray) -> None:
        """Learn from the target's laws at the end of `tokens` and behind each node of `draft`.

        Only the likeliest tokens of a law are kept, as if they were all.

        Args:
            tokens: up to the root of the draft.
            draft: what was verified.
            logits: float32 `[1 + nodes, vocabulary]`; further rows are ignored.
        """
        raise NotImplementedError

    def look(self, context: Context) -> tuple[Law, float] | None:
        """What is known of exactly this context, see `ContextTable`."""
        raise NotImplementedError

    def offers(self, context: Context, reach: float) -> List[Offer]:
        """What may come after a context that decoding reaches with probability `reach`."""
        raise NotImplementedError

    def grow(self, tokens: List[int], budget: Budget) -> Guess:
        """The likeliest nodes that may follow `tokens`, see `Guess.grow`."""
        raise NotImplementedError


def _kind() -> type:
    if library() is None:
        from paceline.drafters.plain_context_model import PlainContextModel

        return PlainContextModel
    from paceline.drafters.native_context_model import NativeContextModel

    return NativeContextModel
