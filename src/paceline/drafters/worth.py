"""What asking a drafter is worth where another has drafted already: learned in steps of both."""

from __future__ import annotations

from bisect import bisect_right
from dataclasses import dataclass, field

from paceline.calibration import Calibration

WEIGHT = 1 / 32
"""Of the newest observation in running means, once there are many."""

_LOOK = 16
"""Where it was not asked so many times, it is asked again, to see what it adds now."""

_OUTLIER = 4.0
"""Asking that takes more than so many times the usual counts as so many: first drafts of a sequence
also read its prompt."""

_EDGES = (0.25, 0.5, 1.0, 2.0, 4.0, 8.0)
"""Of the kinds of drafts beside which it is asked, in tokens that these promise."""

_KINDS = len(_EDGES) + 1

_GUESS = 1.0
"""Tokens that it is taken to add before it was asked."""

_PRIOR = 4
"""Drafts that the guess counts for."""

_WEIGHED = 0.7
"""Worth of a token that it adds: it needs a row, and two drafts must be weighed
(`docs/results.md`, trained drafters)."""


@dataclass(slots=True)
class Worth:
    """Running means about a drafter.

    Attributes:
        keeps: right tokens of its drafts per token promised, by sequence: copies that are right
            in a recipe are wrong in a sum.
        seconds: what asking it takes; 0 until it was asked twice.
        added: tokens that it adds to a draft of each kind.
        times: how often it was asked beside each kind.
        waiting: steps since then.
        known: whether it ever was.
    """

    keeps: Calibration = field(default_factory=Calibration)
    seconds: float = 0.0
    added: list[float] = field(default_factory=lambda: [_GUESS] * _KINDS)
    times: list[int] = field(default_factory=lambda: [0] * _KINDS)
    waiting: list[int] = field(default_factory=lambda: [0] * _KINDS)
    known: bool = False

    def pays(self, gain: float, step: float) -> bool:
        """Whether asking should commit more tokens per second than verifying now.

        Args:
            gain: tokens that the draft promises that is there already.
            step: seconds of a step in which no drafter but the first is asked.
        """
        kind = _kind(gain)
        if self.waiting[kind] >= _LOOK or not self.seconds or not step:
            return True
        return _WEIGHED * self.added[kind] / (1 + gain) > self.seconds / step

    def passed_over(self, gain: float) -> None:
        """It was not asked beside a draft that promises `gain` tokens."""
        self.waiting[_kind(gain)] += 1

    def asked(self, gain: float, seconds: float) -> None:
        """It was, which took so long."""
        self.waiting[_kind(gain)] = 0
        if self.seconds:
            self.seconds = mean(self.seconds, min(seconds, _OUTLIER * self.seconds))
        elif self.known:  # the first draft of all says little: there is much to make ready
            self.seconds = seconds
        self.known = True

    def learn(self, gain: float, tokens: int) -> None:
        """It added so many tokens to a draft that promised `gain`."""
        kind = _kind(gain)
        self.times[kind] += 1
        weight = max(WEIGHT, 1 / (self.times[kind] + _PRIOR))
        self.added[kind] = mean(self.added[kind], tokens, weight)


def mean(old: float, value: float, weight: float = WEIGHT) -> float:
    """A running mean with the newest value."""
    return old + weight * (value - old)


def _kind(gain: float) -> int:
    return bisect_right(_EDGES, gain)
