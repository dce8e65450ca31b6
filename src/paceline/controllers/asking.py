"""Whether drafts that may be pruned are worth making at all: what they cost against what they save.

Making a draft costs the drafter's time and that of choosing from it, whether or not it is verified.
As long as drafts save more than that they are asked for at every step; else now and then, less and
less often, since what does not pay now may pay later in the text. Costs and savings come from steps
that are over.
"""

from __future__ import annotations

_EVERY, _SELDOM, _HARDLY = 4, 16, 64
"""Where drafts do not pay, ask in one of so many steps: half as often each time that the draft is
no better, down to the second number, in batches the third. After one that would have paid, ask at
once: good drafts come in runs."""

_SOONER = 4
"""In a batch some draft is good by chance now and then: there, ask so many times as often after one
that would have paid. A run is still found within a few asks."""

_TRIAL = 20
"""Drafts that are made before they are judged."""

_SMOOTHING = 0.02
"""Weight of one draft in what drafting costs and saves."""

_OUTLIER = 4.0
"""A draft that takes more than this many times the usual was held up by something else."""


class Asking:
    """Decides step by step."""

    def __init__(self, hope: float) -> None:
        """Believe at first that drafts save `hope` seconds a step and cost nothing."""
        self._saved = hope
        self.cost = 0.0
        """Estimated seconds that drafts of a step cost, in a run of asking."""
        self._every = 1
        self._since = 0
        self._trial = _TRIAL
        self._first = True

    def now(self, sequences: int = 1) -> bool:
        """Whether to ask in this step.

        A batch's forward is dear in rows: there drafts must show first that they pay.

        Args:
            sequences: that would be drafted for.
        """
        self._since += 1
        if self._trial and sequences > 1:
            self._trial, self._saved = 0, 0.0
        if self._trial or self._saved >= self.cost:
            self._every = 1
            return True
        return self._since >= self._every

    def learn(self, saved: float, cost: float, drafts: int = 1) -> None:
        """Drafts were asked for, and are over.

        Args:
            saved: seconds that the best part of them saves, if any.
            cost: seconds that it took to make them, to choose what to verify, and to learn.
            drafts: how many there were: a batch tells sooner than a sequence.
        """
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
