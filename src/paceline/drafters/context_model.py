"""An n-gram model of the target, learned while it decodes.

What the target said after the last few tokens, whether it was followed or not, is a guess of what
it will say after the same tokens. Contexts of several lengths are kept. For a guess the longest
known one offers its tokens first, then the next shorter one for the cases in which all those fail,
and so on (prediction by partial matching). How often such an offer comes true is not what the
averages say: it is learned per kind of offer, by the length of the context, how often that was
seen, and the share of the token among those not offered yet.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence as List

import numpy as np

from paceline.drafters.best_first import FLOOR, Offer
from paceline.drafters.context_table import WIDTH, Context, ContextTable
from paceline.drafters.statistics import HitRates
from paceline.drafters.top_rows import top_rows
from paceline.types import IntArray, LogitArray, ProbArray, TokenTree

PROMPT_WEIGHT = 0.1
"""What a token of the prompt counts for beside a law of the target's."""

_WEIGHTS = (0.9, 1.9)
"""Contexts known from prompts alone, from one law, from several."""

_SHARES = (0.05, 0.1, 0.2, 0.35, 0.5, 0.7, 0.85, 0.95)

_TAIL = 0.03
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

    def __init__(self, order: int, capacity: int) -> None:
        """Know nothing.

        Args:
            order: tokens of the longest context.
            capacity: most contexts to keep.
        """
        self._order = order
        self._table = ContextTable(capacity)
        self.rates = HitRates(_prior(order), weight=30.0)
        self._known: list[list[list[float]]] = []

    def tail(self, tokens: List[int]) -> Context:
        """The context at the end of `tokens`."""
        return tuple(tokens[-self._order :])

    def follow(self, context: Context, token: int) -> Context:
        """The context behind `token`."""
        return (*context, token)[-self._order :]

    def read(self, tokens: List[int], begin: int, weight: float) -> None:
        """Learn from text: the tokens from position `begin` on came after those before them."""
        ends = range(max(begin, 1), len(tokens))
        contexts = [tuple(tokens[max(0, end - self._order) : end]) for end in ends]
        certain = np.ones((len(contexts), 1))
        self._add(contexts, np.array(tokens[ends.start :])[:, None], certain, weight)

    def recycle(self, tokens: List[int], draft: TokenTree, logits: LogitArray) -> None:
        """Learn from the target's laws at the end of `tokens` and behind each node of `draft`.

        Only the likeliest tokens of a law are kept, as if they were all.

        Args:
            tokens: up to the root of the draft.
            draft: what was verified.
            logits: float32 `[1 + nodes, vocabulary]`; further rows are ignored.
        """
        contexts = [self.tail(tokens)]
        for token, parent in zip(draft.tokens.tolist(), draft.parents.tolist(), strict=True):
            contexts.append(self.follow(contexts[parent + 1], token))
        ids, values = top_rows(logits[: len(contexts)], WIDTH)
        shares = np.exp(values - values[:, :1], dtype=np.float64)
        shares /= shares.sum(axis=1, keepdims=True)
        self._add(contexts, ids, shares, 1.0)

    def ready(self) -> None:
        """Take the hit rates of the moment for the offers that follow."""
        self._known = self.rates.rates.tolist()

    def offers(self, context: Context, reach: float) -> List[Offer]:
        """What may come after a context that decoding reaches with probability `reach`."""
        offers: list[Offer] = []
        offered: set[int] = set()
        left = 1.0
        for length in range(len(context), 0, -1):
            found = self._table.look(context[-length:])
            if found is None:
                continue
            tokens, shares, weight = found
            kind = bisect_right(_WEIGHTS, weight)
            rates = self._known[length - 1][kind]
            rest = sum(share for t, share in zip(tokens, shares, strict=True) if t not in offered)
            for token, share in zip(tokens, shares, strict=True):
                if share == 0 or left * reach < FLOOR:
                    break
                if token not in offered:
                    part = bisect_right(_SHARES, share / (max(rest, share) + _TAIL))
                    offers.append((token, left * rates[part], (length - 1, kind, part)))
                    offered.add(token)
                    left *= 1 - rates[part]
                    rest -= share
        return offers

    def _add(
        self, contexts: List[Context], tokens: IntArray, shares: ProbArray, weight: float
    ) -> None:
        """Learn laws for all lengths of their contexts."""
        rows = [row for row, context in enumerate(contexts) for _ in context]
        ends = [context[-n:] for context in contexts for n in range(1, len(context) + 1)]
        self._table.add(ends, tokens[rows], shares[rows], weight)
