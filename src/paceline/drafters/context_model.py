"""Online n-gram model of the target's distributions, with PPM back-off to shorter contexts.

Hit rates of candidates are learned by context length, evidence and share of the token. Native
kernels and the Python reference implementation draft alike.
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

# Weight of a prompt token, relative to one distribution of the target.
PROMPT_WEIGHT = 0.1

# Evidence bins: contexts from prompts alone, from one distribution, from several.
WEIGHTS = (0.9, 1.9)

# Bins of candidates by share.
SHARES = (0.05, 0.1, 0.2, 0.35, 0.5, 0.7, 0.85, 0.95)

# Assumed share of all tokens beyond the stored ones.
TAIL = 0.03

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
    # float64 `[order, 3, 9]`; contexts longer than the tables use the last row.
    lengths = [min(length, len(_FROM_LAWS) - 1) for length in range(order)]
    return np.array([[_FROM_PROMPTS[i], _FROM_LAWS[i], _FROM_LAWS[i]] for i in lengths])


class ContextModel:
    """Predicts the next token from contexts of 1 to `order` tokens; `rates` are its hit rates."""

    def __new__(cls, *_: object) -> Self:
        return super().__new__(_kind() if cls is ContextModel else cls)

    def __init__(self, order: int, capacity: int) -> None:
        """Create an empty model of up to `capacity` contexts."""
        self._order = order
        self.rates = HitRates(_prior(order), weight=30.0)

    def tail(self, tokens: List[int]) -> Context:
        """Return the longest context at the end of `tokens`."""
        return tuple(tokens[-self._order :])

    def follow(self, context: Context, token: int) -> Context:
        return (*context, token)[-self._order :]

    def read(self, tokens: List[int], begin: int, weight: float) -> None:
        """Learn from text, from position `begin` on."""
        raise NotImplementedError

    def recycle(self, tokens: List[int], draft: TokenTree, logits: LogitArray) -> None:
        """Learn from the target's distributions at the root and nodes of a draft (top tokens only).

        `tokens` end at the root; `logits` are float32 `[1 + nodes, vocabulary]`, more rows ignored.
        """
        raise NotImplementedError

    def look(self, context: Context) -> tuple[Law, float] | None:
        """Return the entry of exactly this context, see `ContextTable`."""
        raise NotImplementedError

    def offers(self, context: Context, reach: float) -> List[Offer]:
        """Return the candidates after a context of path probability `reach`."""
        raise NotImplementedError

    def grow(self, tokens: List[int], budget: Budget) -> Guess:
        """Draft best-first after `tokens`, see `Guess.grow`."""
        raise NotImplementedError


def _kind() -> type:
    if library() is None:
        from paceline.drafters.plain_context_model import PlainContextModel

        return PlainContextModel
    from paceline.drafters.native_context_model import NativeContextModel

    return NativeContextModel
