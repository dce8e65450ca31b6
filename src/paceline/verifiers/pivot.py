"""Pivot-aware decoding (PAD): a mismatch stands unless it would turn the text. Lossy.

A mismatch is pivotal if what the target goes on to write behind it serves worse than what it
writes behind its own token. A light classifier (logistic regression) on the hidden state at the
drafted token and on a few probabilities estimates that; a mismatch passes if the estimate lies
below `threshold`. The features are ours, the published ones being unknown.

The head that ships was trained for the default model on labels of the model's own making, see
`paceline.training.labels`; other models need their own (`paceline train pivot`).

Lossless limit: threshold = 0 calls every mismatch pivotal; the text is that of plain decoding.
"""

from __future__ import annotations

from typing import ClassVar

import numpy as np

from paceline.types import Law, LogitArray
from paceline.verifiers.headed import Headed
from paceline.verifiers.pardon import Round

_LEAST = 1e-12
"""Probabilities are read as at least this, so that their logarithms stay finite."""


def features(law: Law, unsure: float, own: int, token: int, hidden: LogitArray) -> LogitArray:
    """float32 `[4 + hidden_size]`: what the classifier sees of a mismatch.

    Args:
        law: the target's (soft) law where the mismatch stands.
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
    """Pardons what the head finds harmless."""

    name: ClassVar[str] = "pivot"

    def pardons(self, step: Round, node: int, child: int, depth: int) -> bool:
        """Whether the head finds the mismatch harmless."""
        law, token = step.target.soft(node), int(step.draft.tokens[child])
        own, hidden = step.own(node, depth), step.target.hidden(child)
        seen = features(law, step.entropy(node), own, token, hidden)
        return self.head.probability(seen) < self.threshold
