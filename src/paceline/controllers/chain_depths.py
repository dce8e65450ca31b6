"""How deep to draft for each sequence of a batch when drafts cannot be pruned afterwards.

Drawn drafts, and those without estimates, must be sized before they are made. What a sequence's
next drafted token gains is the chance that a draft of it stands so deep, learned from its own
steps and from those of all; tokens of the whole batch compete for the rows of one forward.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from paceline.controllers.cost import CostModel
from paceline.controllers.sizing import MARGIN
from paceline.types import ProbArray

_MEMORY = 0.98
"""Decay of what was counted: of all sequences per trial, of one per step."""

_BELIEF = 4.0
"""Trials that the rates of all sequences count for in a sequence's own."""

_PRIOR = 8.0
"""Trials that the rate of the depth above counts for in a depth's, so that a drafter that is right
is soon tried deeper."""


class ChainReach:
    """Chances that a chain stands down to each depth, by sequence id."""

    def __init__(self, depth: int, acceptance: float) -> None:
        """Take a first token to be accepted with that chance."""
        self._acceptance = acceptance
        self._stood = np.zeros(depth)
        self._tried = np.zeros(depth)
        self._own: dict[int, ProbArray] = {}

    def reach(self, id: int) -> ProbArray:
        """float64 `[depth]`, never rising."""
        rate, each = self._acceptance, []
        for stood, tried in zip(self._stood.tolist(), self._tried.tolist(), strict=True):
            rate = (stood + _PRIOR * rate) / (tried + _PRIOR)
            each.append(rate)
        rates = np.array(each)
        own = self._own.get(id)
        if own is not None:
            rates = (own[0] + _BELIEF * rates) / (own[1] + _BELIEF)
        return np.cumprod(rates).astype(np.float64, copy=False)

    def learn(self, id: int, drafted: int, accepted: int) -> None:
        """A chain of `drafted` tokens (0 if there was none) stood for `accepted`."""
        own = self._own.setdefault(id, np.zeros((2, len(self._tried))))
        own *= _MEMORY  # what was not tried for long is as with others again
        for depth in range(min(drafted, accepted + 1, len(self._tried))):
            self._tried[depth] = _MEMORY * self._tried[depth] + 1
            self._stood[depth] = _MEMORY * self._stood[depth] + (depth < accepted)
            own[:, depth] += (depth < accepted, 1)

    def close(self, id: int) -> None:
        """Forget a sequence's own chances."""
        self._own.pop(id, None)


def best_depths(
    reach: Sequence[ProbArray], costs: CostModel, level_seconds: float = 0.0, beside: int = 0
) -> list[int]:
    """Depths of chains, one per sequence, that commit most tokens per second together.

    Sequences draft in step, so a batch's draft takes as long as its deepest chain. For every
    depth of that, the tokens most likely to stand are taken in order, as many as pay.

    Args:
        reach: per sequence, float64 `[most]`, chances that its chain stands so deep, not rising.
        costs: what forwards cost.
        level_seconds: what a drafted level costs.
        beside: rows of the forward that belong to none of the sequences. They are there for their
            own sake: a chain must gain more than its own time would commit in a plain step.
    """
    roots = len(reach)
    owners = np.repeat(np.arange(roots), [len(each) for each in reach])
    levels = np.concatenate([np.arange(len(each)) for each in reach])
    chances = np.concatenate(reach)
    likeliest = np.argsort(-chances, kind="stable")  # of equals in one chain, parents first
    seconds = costs.times(roots + beside + np.arange(len(chances) + 1), roots)
    rate = MARGIN * roots / costs.time(roots, roots)
    best, chosen = -np.inf, likeliest
    for depth in range(int(levels.max(initial=-1)) + 2):
        order = likeliest[levels[likeliest] < depth]
        tokens = roots + np.concatenate([[0.0], np.cumsum(chances[order])])
        spent = seconds[: len(order) + 1] + depth * level_seconds
        value = tokens - rate * spent if beside else tokens / (spent * np.where(depth, MARGIN, 1.0))
        count = int(np.argmax(value))
        if value[count] > best:
            best, chosen = float(value[count]), order[:count]
    depths: list[int] = np.bincount(owners[chosen], minlength=roots).tolist()
    return depths
