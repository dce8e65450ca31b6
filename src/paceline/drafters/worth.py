"""Marginal value of one more drafter after another has drafted, learned from steps of both."""

from __future__ import annotations

from bisect import bisect_right
from dataclasses import dataclass, field

from paceline.calibration import Calibration

# Of the newest observation in running means, once there are many.
WEIGHT = 1 / 32

# After so many steps without it, the drafter runs again, to see what it adds now.
_LOOK = 16

# A draft that takes more than so many times the usual counts as so many: the first draft of a
# sequence includes prefill.
_OUTLIER = 4.0

# Kinds of drafts that it adds to: edges in expected accepted tokens.
_EDGES = (0.25, 0.5, 1.0, 2.0, 4.0, 8.0)

_KINDS = len(_EDGES) + 1

# Prior of the tokens that it adds.
_GUESS = 1.0

# Drafts that the prior counts for.
_PRIOR = 4

# Worth of an added token: it needs a row, and two drafts must be weighed (`docs/results.md`,
# trained drafters).
_WEIGHED = 0.7


@dataclass(slots=True)
class Worth:
    """Running means about a drafter.

    Attributes:
        keeps: accepted per expected token of its drafts, by sequence.
        seconds: time of a draft; 0 until it drafted twice.
        added: tokens that it adds to a draft of each kind.
        times: drafts made beside each kind.
        waiting: steps since then.
        known: whether it ever drafted.
    """

    keeps: Calibration = field(default_factory=Calibration)
    seconds: float = 0.0
    added: list[float] = field(default_factory=lambda: [_GUESS] * _KINDS)
    times: list[int] = field(default_factory=lambda: [0] * _KINDS)
    waiting: list[int] = field(default_factory=lambda: [0] * _KINDS)
    known: bool = False

    def pays(self, gain: float, step: float) -> bool:
        """Return whether drafting beside `gain` expected tokens should raise tokens per second.

        `step` is the seconds of a step in which only the first drafter runs.
        """
        kind = _kind(gain)
        if self.waiting[kind] >= _LOOK or not self.seconds or not step:
            return True
        return _WEIGHED * self.added[kind] / (1 + gain) > self.seconds / step

    def passed_over(self, gain: float) -> None:
        """Note that it did not run beside a draft of `gain` expected tokens."""
        self.waiting[_kind(gain)] += 1

    def asked(self, gain: float, seconds: float) -> None:
        """Note that it ran, and took so many seconds."""
        self.waiting[_kind(gain)] = 0
        if self.seconds:
            self.seconds = mean(self.seconds, min(seconds, _OUTLIER * self.seconds))
        elif self.known:  # the first draft of all says little: there is much to make ready
            self.seconds = seconds
        self.known = True

    def learn(self, gain: float, tokens: int) -> None:
        """Note that it added so many tokens to a draft of `gain` expected tokens."""
        kind = _kind(gain)
        self.times[kind] += 1
        weight = max(WEIGHT, 1 / (self.times[kind] + _PRIOR))
        self.added[kind] = mean(self.added[kind], tokens, weight)


def mean(old: float, value: float, weight: float = WEIGHT) -> float:
    """Return a running mean with the newest value."""
    return old + weight * (value - old)


def _kind(gain: float) -> int:
    return bisect_right(_EDGES, gain)
