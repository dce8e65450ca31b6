"""Progress of a trained drafter in a sequence: rows in its network's cache, and rows that wait."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np

from paceline.drafters.trained_making import Version
from paceline.networks.runner import Chain, Grown, Noise
from paceline.types import Budget, LogitArray

# Last rows of a prompt that a network reads in any case, even if others have cached them.
RECENT = 128

# Last rows of a longer prompt that it reads before the first draft. Fewer would cost accepted
# tokens after long prompts.
_PROMPT = 1024

# Rows that may wait for a draft beyond those.
_WAITING = 256


@dataclass(slots=True)
class Progress:
    """A sequence's cache in the network, and the rows that are not in it yet.

    Attributes:
        version: the network that drafts for it.
        cache: from `Runner.open`.
        features: float32 `[rows, 4 * width]` each; row i belongs to the position before
            `tokens[i]`. They have no width if none are read.
        tokens: those that wait, the root at the end.
        begun: whether the cache holds any rows.
        chain: the last that was drafted, until its verdict is known.
        budget: of the last requested draft.
        steady: steps in a row that requested one.
    """

    version: Version
    cache: Any
    features: list[LogitArray]
    tokens: list[int]
    begun: bool = False
    chain: Chain | None = None
    budget: Budget = field(default_factory=lambda: Budget(0, 0))
    steady: int = 0

    def note(
        self, tokens: list[int], features: LogitArray, target: Any, reads_all: bool = False
    ) -> None:
        """Add rows for the next draft, and what follows each; `target` is the target's cache.

        Of too many, old rows are dropped before the first draft (unless the network `reads_all`),
        and run through the network after it.
        """
        most = _WAITING if self.begun else _PROMPT + _WAITING
        self.tokens += tokens
        self.features.append(features)
        if len(self.tokens) <= most:
            return
        if self.begun or reads_all:
            known = np.concatenate(self.features)
            read = Grown(self.cache, known[:-1], self.tokens[:-1], target)
            self.version.runner.draft([read], 0)
            self._keep(1)  # which drafts start behind
        else:
            self._keep(_PROMPT)

    def _keep(self, rows: int) -> None:
        # Rows may be megabytes: they are copied only where a view would hold more memory than
        # they need.
        self.tokens = self.tokens[-rows:]
        kept: list[LogitArray] = []
        for features in reversed(self.features):
            tail = features[-rows:]
            kept.insert(0, tail if 2 * len(tail) >= len(features) else tail.copy())
            rows -= len(tail)
            if not rows:
                break
        self.features = kept

    def asked(self, budget: Budget) -> None:
        """Note the budget of a step."""
        if min(budget.nodes, budget.depth) > 0:
            self.budget = budget
            self.steady += 1
        else:
            self.steady = 0

    def grown(self, target: Any, least: float, noise: Noise | None) -> Grown:
        """Return the waiting rows, for a draft that may end below a chance of `least`."""
        new = self.features[0] if len(self.features) == 1 else np.concatenate(self.features)
        return Grown(self.cache, new, self.tokens, target, noise, least)

    def taken(self) -> None:
        """Note that the cache holds all rows."""
        self.features, self.tokens, self.begun = [], [], True
