"""Pivot-aware decoding (PAD), lossy: a mismatch is accepted unless a classifier calls it
pivotal, from the hidden state at the drafted token and a few probabilities (features ours; the
published ones are unknown). The shipped head is for the default model, trained on its own
labels; others: `paceline train pivot`. Lossless limit: threshold = 0.
"""

from __future__ import annotations

from typing import ClassVar

import numpy as np

from paceline.types import Law, LogitArray
from paceline.verifiers.headed import Headed
from paceline.verifiers.pardon import Round

# Probabilities are read as at least this, so that their logarithms stay finite.
_LEAST = 1e-12


def features(law: Law, unsure: float, own: int, token: int, hidden: LogitArray) -> LogitArray:
    """Return float32 `[4 + hidden_size]`, the classifier's features of a mismatch.

    Args:
        law: the target's (soft) distribution where the mismatch stands.
        unsure: its entropy in nats.
        own: the target's own token there.
        token: the drafted token.
        hidden: float32 `[hidden_size]`, the target's final hidden state at the drafted token.
    """
    p = max(law.prob(token), _LEAST)
    rank = int((law.probs > law.prob(token)).sum())
    scalars = (np.log(p), np.log(max(law.prob(own), _LEAST) / p), unsure, np.log1p(rank))
    return np.concatenate([np.array(scalars, dtype=np.float32), hidden])


class Pivot(Headed):
    """Relaxed acceptance of mismatches that the head finds harmless."""

    name: ClassVar[str] = "pivot"

    def pardons(self, step: Round, node: int, child: int, depth: int) -> bool:
        law, token = step.target.soft(node), int(step.draft.tokens[child])
        own, hidden = step.own(node, depth), step.target.hidden(child)
        seen = features(law, step.entropy(node), own, token, hidden)
        return self.head.probability(seen) < self.threshold
