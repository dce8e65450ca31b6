"""Draft gate: draft while drafts save more time than drafting costs, else ever more rarely."""

from __future__ import annotations

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


class Asking:
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
