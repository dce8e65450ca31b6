"""How far a trained drafter has come in a sequence: what its network has read, and what waits."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np

from paceline.drafters.trained_making import Version
from paceline.networks.runner import Chain, Grown, Noise
from paceline.types import Budget, LogitArray

RECENT = 128
"""Last rows of a prompt that a network reads in any case, even if others have cached them."""

_PROMPT = 1024
"""Rows that it reads of what is longer before the first draft. With 128, chains of EAGLE-3 behind
long prompts would bring 4% (answers from texts) to 14% (summaries) fewer tokens per forward."""

_WAITING = 256
"""Rows that may wait for a draft beyond those."""


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
        chain: the last that was drafted, until its fate is known.
        budget: of the last draft that was asked for.
        steady: steps in a row that asked for one.
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
        """Add rows for the next draft: not every sequence is asked for one. If they become many,
        old ones are left out before the first draft, and taken in behind it.

        Args:
            tokens: what follows each row.
            features: of the rows.
            target: the target's cache of the sequence.
            reads_all: whether the network wants all rows of a prompt.
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
        """Forget all but the last rows that wait. They may be megabytes, and are moved only where
        more would be held by them than they are."""
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
        """A step asks for a draft of this size, or for none."""
        if min(budget.nodes, budget.depth) > 0:
            self.budget = budget
            self.steady += 1
        else:
            self.steady = 0

    def grown(self, target: Any, least: float, noise: Noise | None) -> Grown:
        """What waits, for a draft that may end below a chance of `least`, drawn with this noise."""
        new = self.features[0] if len(self.features) == 1 else np.concatenate(self.features)
        return Grown(self.cache, new, self.tokens, target, noise, least)

    def taken(self) -> None:
        """The cache holds all rows now."""
        self.features, self.tokens, self.begun = [], [], True
