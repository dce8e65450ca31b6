"""FLy (AMD-AGI/FLy), lossy: relaxed acceptance with an entropy gate and a deferred window. A
mismatch is accepted if the next `window` - 1 drafted tokens are the target's own, and the
target's top-3 entropy is at least `gate`. Lossless limit: a window longer than the draft, or a
gate above ln 3.
"""

from __future__ import annotations

import math
from typing import ClassVar

import numpy as np

from paceline.core.options import require
from paceline.core.types import Distribution
from paceline.methods.relaxed_acceptance import RelaxedAcceptance, Round
from paceline.sampling.sampler import top_k_ids

# Most likely tokens that the entropy gate reads.
_BEST = 3


def top_entropy(distribution: Distribution) -> float:
    """Return -sum p log p over the three most likely tokens, in nats; not renormalised."""
    best = distribution.probs[top_k_ids(distribution.probs, min(_BEST, len(distribution.probs)))]
    best = best[best > 0]
    return -float(best @ np.log(best))


class Fly(RelaxedAcceptance):
    """Accept drafts of every kind; made for long chains (the paper drafts 15 tokens)."""

    name: ClassVar[str] = "fly"
    guarantee = "lossy: accepts a mismatch that the target continues as drafted"
    requires = "any draft; at least 7 deep with the paper's window of 6 tokens"
    paper = "FLy, Li et al. 2025, arXiv:2511.22972"
    proof = "paceline.methods.proof:FLY"

    def __init__(self, window: int = 6, gate: float = 0.3) -> None:
        """Set the window in tokens, the mismatch included, and the entropy gate in nats, 0
        being off.

        The defaults are the paper's. The last `window` tokens of a chain get no relaxed acceptance.

        Raises:
            InvalidOption: a parameter is out of range.
        """
        require(window >= 1, "window", window, "1 or more")
        require(math.isfinite(gate) and gate >= 0, "gate", gate, "0 (off) or more")
        self.window = window
        self.gate = gate

    def relaxes(self, step: Round, node: int, child: int, depth: int) -> bool:
        last = child
        for ahead in range(1, self.window):
            follower = step.match(last, depth + ahead)
            if follower is None:
                return False
            last = follower
        if not step.children(last):
            return False
        return top_entropy(step.target.soft(node)) >= self.gate
