"""Chain depths for a batch when drafts cannot be pruned: drawn drafts, and drafts without
scores. The acceptance probability per depth is learned per sequence and shared; tokens of the
whole batch compete for the rows of one forward.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate
from operator import itemgetter, mul

from paceline.controllers.cost import CostModel
from paceline.controllers.sizing import MARGIN

# Decay of counts: of all sequences per trial, of one per step.
_MEMORY = 0.98

# Trials that the rates of all sequences count for in a sequence's own.
_BELIEF = 4.0

# Trials that the rate of the depth above counts for in a depth's, so that a drafter that is right
# is soon tried deeper.
_PRIOR = 8.0


@dataclass(slots=True)
class _Own:
    # By depth: accepted tokens and trials of one sequence, as they were at `step`.

    stood: list[float]
    tried: list[float]
    step: int

    def fade(self, step: int) -> None:
        # A depth that was not tried for long returns to the shared rate.
        memory = _MEMORY ** (step - self.step)
        self.stood = [memory * each for each in self.stood]
        self.tried = [memory * each for each in self.tried]
        self.step = step


class ChainReach:
    """Acceptance probabilities of chains down to each depth, by sequence id."""

    def __init__(self, depth: int, acceptance: float) -> None:
        # `acceptance`: prior of a first token.
        # Number of the current step; set by the owner.
        self.step = 0
        self._acceptance = acceptance
        self._stood = [0.0] * depth
        self._tried = [0.0] * depth
        self._rates = self._shared()
        self._own: dict[int, _Own] = {}

    def reach(self, id: int, most: int) -> list[float]:
        """Return acceptance probabilities of the first `most` tokens of a chain, never rising."""
        own = self._own.get(id)
        if own is None:
            return list(accumulate(self._rates[:most], mul))
        own.fade(self.step)
        chance, out = 1.0, []
        for rate, stood, tried in zip(self._rates[:most], own.stood, own.tried, strict=False):
            chance *= (stood + _BELIEF * rate) / (tried + _BELIEF)
            out.append(chance)
        return out

    def learn(self, id: int, drafted: int, accepted: int) -> None:
        """Count a chain of `drafted` tokens, `accepted` of them accepted."""
        depths = len(self._tried)
        own = self._own.get(id)
        if own is None:
            own = self._own[id] = _Own([0.0] * depths, [0.0] * depths, self.step)
        own.fade(self.step)
        for depth in range(min(drafted, accepted + 1, depths)):
            self._tried[depth] = _MEMORY * self._tried[depth] + 1
            self._stood[depth] = _MEMORY * self._stood[depth] + (depth < accepted)
            own.tried[depth] += 1
            own.stood[depth] += depth < accepted
        self._rates = self._shared()

    def close(self, id: int) -> None:
        self._own.pop(id, None)

    def _shared(self) -> list[float]:
        rate, out = self._acceptance, []
        for stood, tried in zip(self._stood, self._tried, strict=True):
            rate = (stood + _PRIOR * rate) / (tried + _PRIOR)
            out.append(rate)
        return out


def best_depths(
    reach: Sequence[Sequence[float]],
    costs: CostModel,
    level_seconds: float = 0.0,
    beside: int = 0,
) -> list[int]:
    """Return depths of chains, one per sequence, that commit most tokens per second together.

    A batch's draft takes as long as its deepest chain: for every such depth, the likeliest
    tokens are taken as far as they pay. Lists, not arrays: few tokens, at every step.

    Args:
        reach: per sequence, acceptance probabilities down to each depth, never rising.
        costs: forward costs.
        level_seconds: cost of a drafted level.
        beside: rows of prefill in the forward. With them a chain must gain more than its own
            time would commit in a plain step.
    """
    roots = len(reach)
    nodes = [
        (chance, level, owner)
        for owner, chances in enumerate(reach)
        for level, chance in enumerate(chances, 1)
    ]
    nodes.sort(key=itemgetter(0), reverse=True)  # of equals in one chain, parents first
    seconds = costs.span(roots + beside, len(nodes), roots)
    rate = MARGIN * roots / costs.time(roots, roots)
    best = roots - rate * seconds[0] if beside else roots / seconds[0]
    deepest = count = 0
    for depth in range(1, max(map(len, reach)) + 1):
        drafting = depth * level_seconds
        gained, taken = 0.0, 0
        for chance, level, _ in nodes:
            if level > depth:
                continue
            gained += chance
            taken += 1
            spent = seconds[taken] + drafting
            tokens = roots + gained
            value = tokens - rate * spent if beside else tokens / (spent * MARGIN)
            if value > best:
                best, deepest, count = value, depth, taken
    depths = [0] * roots
    for _, level, owner in nodes:
        if level <= deepest and count:
            depths[owner] += 1
            count -= 1
    return depths
