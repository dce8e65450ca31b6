"""One chain from two drafters: a network's, that takes another drafter's token where it should.

A copy of earlier text and a network are right in different places. Finished drafts can only be
chosen between; here it is chosen token by token. As long as the chain is what was hinted, the hint
for its next place is known when the network has picked a token, and the likelier of both goes on,
the network with it. How likely each is follows from how sure both are, and is learned: for tokens
that both name, for the network's where they differ, and for the hint's there. Behind the network's
last token a chain that was hinted throughout goes on as hinted.

Hints are for greedy requests; what is drafted is a function of committed text, as before.
"""

from __future__ import annotations

from collections.abc import Sequence as List
from dataclasses import dataclass, replace

import numpy as np

from paceline.drafters.statistics import HitRates
from paceline.networks.hints import CELLS, KINDS, Hints
from paceline.networks.runner import Chain, Grown
from paceline.types import ROOT, IntArray, ProbArray, TokenTree

_BELIEF = 12.0
"""Trials that the first guess of a rate counts for."""


def _prior() -> ProbArray:
    """float64 `[3, CELLS]`: rates of drafters that err independently of one another.

    For tokens that both name, the network's of two, the hint's of two.
    """
    own = np.array([0.1, 0.2, 0.3, 0.45, 0.6, 0.8, 0.95])[:, None]
    hint = np.array([0.0, 0.1, 0.25, 0.5, 0.7, 0.9])[None]
    either = 1 - own * hint
    rates = [1 - (1 - own) * (1 - hint), own * (1 - hint) / either, hint * (1 - own) / either]
    return np.stack(rates).reshape(3, CELLS)


@dataclass(slots=True)
class _Open:
    """A chain whose outcome is not known yet."""

    hints: Hints
    tokens: list[int]
    own: list[int]
    cells: list[int]


class Heeding:
    """What a network's chains made of hints."""

    def __init__(self) -> None:
        """No hint was given."""
        self._given: dict[int, TokenTree] = {}
        self._open: dict[int, _Open] = {}
        self.reset()

    def reset(self) -> None:
        """Forget how good hints are."""
        self.rates = HitRates(_prior(), _BELIEF)

    def give(self, id: int, draft: TokenTree) -> None:
        """Hint at a draft for the next step of a sequence."""
        self._given[id] = draft

    def hinted(self, grown: Grown, id: int) -> Grown:
        """The same with the hints for a sequence, if there are any."""
        draft = self._given.pop(id, None)
        if draft is None:
            return grown
        rates = np.frombuffer(self.rates.flat).reshape(3, CELLS)
        return replace(grown, hints=Hints(*_path(draft), rates))

    def note(self, id: int, hints: Hints, chain: Chain) -> None:
        """Remember a chain until it is known what came."""
        if chain.own is not None and chain.cells is not None:
            drafted = chain.tokens.tolist(), chain.own.tolist(), chain.cells.tolist()
            self._open[id] = _Open(hints, *drafted)

    def learn(self, id: int, committed: List[int]) -> None:
        """Count for whom each token spoke that came, as far as the chain was right."""
        chain = self._open.pop(id, None)
        if chain is None:
            return
        hints = chain.hints.tokens
        drafted = zip(committed, chain.tokens, chain.own, chain.cells, strict=False)
        for place, (came, token, own, cell) in enumerate(drafted):
            if cell % KINDS and own == hints[place]:
                self.rates.count(cell, own == came)
            else:
                self.rates.count(CELLS + cell, own == came)
                if cell % KINDS:
                    self.rates.count(2 * CELLS + cell, hints[place] == came)
            if token != came:
                return

    def close(self, id: int) -> None:
        """Forget a sequence."""
        self._given.pop(id, None)
        self._open.pop(id, None)


def followed(
    hints: Hints, tokens: IntArray, chances: ProbArray, most: int
) -> tuple[IntArray, ProbArray]:
    """A chain that is as hinted throughout, with the hints behind it, `most` tokens in all."""
    count = len(tokens)
    if not count < min(most, len(hints.tokens)) or tokens.tolist() != list(hints.tokens[:count]):
        return tokens, chances
    more = np.array(hints.tokens[count:most], dtype=np.int64)
    return np.append(tokens, more), np.append(chances, hints.chances[count:most])


def _path(draft: TokenTree) -> tuple[list[int], list[float]]:
    """The path of first children, and each token's chance given those before it."""
    tokens: list[int] = []
    chances: list[float] = []
    if draft.scores is None:
        return tokens, chances
    end, above = ROOT, 1.0
    nodes = zip(draft.tokens.tolist(), draft.parents.tolist(), draft.scores.tolist(), strict=True)
    for node, (token, parent, score) in enumerate(nodes):
        if parent == end and score > 0:
            tokens.append(token)
            chances.append(min(1.0, score / above))
            end, above = node, score
    return tokens, chances
