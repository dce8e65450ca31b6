"""Draft gate: draft while drafts save more time than drafting costs, else ever more rarely."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass, field

from paceline.core.types import Budget
from paceline.policy.acceptance import Calibration

# Where drafts do not pay: draft in one of so many steps. The interval doubles with each draft that
# is no better, up to the second number, in batches the third. After one that would have paid,
# draft at once: good drafts come in runs.
_EVERY, _SELDOM, _HARDLY = 4, 16, 64

# In a batch some draft is good by chance: there, the interval only shrinks by this factor.
_SOONER = 4

# Drafts that are made before they are judged.
_TRIAL = 20

# Weight of one draft in what drafting costs and saves.
_SMOOTHING = 0.02

# A draft that takes more than this many times the usual was held up by something else.
_OUTLIER = 4.0


class DraftGate:
    """Draft gate, updated step by step."""

    def __init__(self, hope: float) -> None:
        # At first drafts are believed to save `hope` seconds a step and to cost nothing.
        self._saved = hope
        # Estimated seconds that drafts of a step cost, in a run of drafting steps.
        self.cost = 0.0
        self._every = 1
        self._since = 0
        self._trial = _TRIAL
        self._first = True

    def now(self, sequences: int = 1) -> bool:
        """Return whether to draft in this step. In batches drafts must pay from the start."""
        self._since += 1
        if self._trial and sequences > 1:
            self._trial, self._saved = 0, 0.0
        if self._trial or self._saved >= self.cost:
            self._every = 1
            return True
        return self._since >= self._every

    def learn(self, saved: float, cost: float, drafts: int = 1) -> None:
        """Update the gate after `drafts` drafts: seconds that they save, and that they cost."""
        if self._first:  # it also reads prompts, which says nothing of those to come
            self._first, cost = False, 0.0
        # They stand for all steps since the last ones, as far as so few can: many drafts of a batch
        # are still one place in its texts.
        weight = 1 - (1 - _SMOOTHING) ** min(self._since * drafts, _SELDOM)
        self._saved += weight * (saved - self._saved)
        usual = min(cost, _OUTLIER * self.cost) if self.cost else cost
        self.cost += _SMOOTHING * (usual - self.cost) if self.cost else usual
        if saved > self.cost:
            self._every = max(1, self._every // _SOONER) if drafts > 1 else 1
        else:
            self._every = min(max(_EVERY, 2 * self._every), min(_SELDOM * drafts, _HARDLY))
        self._since = 0
        self._trial = max(0, self._trial - drafts)


# Marginal value of one more drafter after another has drafted, learned from steps of both.

# Of the newest observation in running means, once there are many.
WEIGHT = 1 / 32

# After so many steps without it, the drafter runs again, to see what it adds now.
_LOOK = 16

# A draft that takes more than so many times the usual counts as so many: the first draft of a
# sequence includes prefill.
_worth_OUTLIER = 4.0

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
class MarginalGain:
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
            self.seconds = mean(self.seconds, min(seconds, _worth_OUTLIER * self.seconds))
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


# Sampling of plain steps for drafters that learn from the target's logits.

_idle_SELDOM = 8


class LearnThrottle:
    """Count steps without drafts, and let the drafter learn from one in eight of them.

    Ranking logits rows in every plain step would slow decoding down where drafts do not pay.
    """

    def __init__(self) -> None:
        self._steps = 0

    def skips(self, budgets: Sequence[Budget]) -> bool:
        """Return whether the drafter skips the step with these budgets."""
        if any(budget.nodes and budget.depth for budget in budgets):
            self._steps = 0
            return False
        self._steps += 1
        return self._steps % _idle_SELDOM != 0
