"""FLy: loose verification with an entropy gate and a deferred window (AMD-AGI/FLy). Lossy.

A mismatch is pardoned if the target goes on as drafted behind it: the next `window` - 1 drafted
tokens are all the target's own, given the mismatch. Two things forbid it. The window must end
before the draft does, so the last `window` tokens of a chain are never pardoned. And where the
target was sure, with an entropy over its three best tokens, -sum p log p, below `gate`, the
mismatch counts.

In a tree the tokens behind a mismatch are those of the only path that holds the target's own.

Lossless limit: a window longer than the draft, or a gate above ln 3 (the largest entropy that
three probabilities can have), pardons nothing. The text is then that of plain decoding, greedy or
sampled (in the paper's code sampling tries two draws per position; here a mismatch is with the one
draw of plain decoding).
"""

from __future__ import annotations

import math
from typing import ClassVar

import numpy as np

from paceline.options import require
from paceline.sampling import top_k_ids
from paceline.types import Law
from paceline.verifiers.pardon import Pardoning, Round

_BEST = 3
"""How many of the likeliest tokens the gate looks at."""


def top_entropy(law: Law) -> float:
    """-sum p log p over the three most likely tokens, in nats; not renormalised."""
    best = law.probs[top_k_ids(law.probs, min(_BEST, len(law.probs)))]
    best = best[best > 0]
    return -float(best @ np.log(best))


class Fly(Pardoning):
    """Takes drafts of every kind; made for long chains (the paper drafts 15 tokens)."""

    name: ClassVar[str] = "fly"

    def __init__(self, window: int = 6, gate: float = 0.3) -> None:
        """Set window and gate; the defaults are the paper's.

        Args:
            window: length of the window in tokens, the mismatch included, 1 or more.
            gate: entropy in nats below which a mismatch always counts, 0 (off) or more.

        Raises:
            InvalidOption: a parameter is out of range.
        """
        require(window >= 1, "window", window, "1 or more")
        require(math.isfinite(gate) and gate >= 0, "gate", gate, "0 (off) or more")
        self.window = window
        self.gate = gate

    def pardons(self, step: Round, node: int, child: int, depth: int) -> bool:
        """Whether the target was unsure, and agrees with what was drafted behind the mismatch."""
        last = child
        for ahead in range(1, self.window):
            follower = step.match(last, depth + ahead)
            if follower is None:
                return False
            last = follower
        if not step.children(last):
            return False
        return top_entropy(step.target.soft(node)) >= self.gate
