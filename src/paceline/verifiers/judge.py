"""Judge Decoding (Bachmann et al. 2025, arXiv:2501.19309): a head says which mismatch is fine.

The target's last hidden state at a drafted token, after the final norm, tells how the target takes
that token. A linear head on it gives the probability that the token is acceptable; a mismatch
passes if that exceeds `threshold`. Lossy.

The head that ships was trained for the default model on labels of the model's own making, see
`paceline.training.labels`; other models need their own (`paceline train judge`).

Lossless limit: threshold = 1 pardons nothing; the text is that of plain decoding.
"""

from __future__ import annotations

from typing import ClassVar

from paceline.verifiers.headed import Headed
from paceline.verifiers.pardon import Round


class Judge(Headed):
    """Pardons what the head finds acceptable."""

    name: ClassVar[str] = "judge"

    def pardons(self, step: Round, node: int, child: int, depth: int) -> bool:
        """Whether the head finds the token acceptable."""
        return self.head.probability(step.target.hidden(child)) > self.threshold
