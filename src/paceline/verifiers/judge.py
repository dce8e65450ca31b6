"""Judge Decoding (Bachmann et al. 2025, arXiv:2501.19309), lossy: a linear head on the target's
last hidden state at a drafted token accepts a mismatch above `threshold`. The shipped head is
for the default model, trained on its own labels (`paceline.training.labels`); others: `paceline
train judge`. Lossless limit: threshold = 1.
"""

from __future__ import annotations

from typing import ClassVar

from paceline.verifiers.headed import Headed
from paceline.verifiers.pardon import Round


class Judge(Headed):
    """Relaxed acceptance of mismatches that the head finds acceptable."""

    name: ClassVar[str] = "judge"

    def pardons(self, step: Round, node: int, child: int, depth: int) -> bool:
        return self.head.probability(step.target.hidden(child)) > self.threshold
