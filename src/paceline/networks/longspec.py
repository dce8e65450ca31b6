"""LongSpec: a drafter whose cache does not grow (Yang et al. 2025, arXiv:2502.17421).

A decoder layer sees no further back than `reach` rows, so that memory and the work of a step stay
the same however long the text is. What lies before reaches it through the target's features, which
EAGLE-3's layer reads. The published layer attends to keys and values of the target's last layer for
that; and the random offsets that the paper trains with are left out, since rotary positions are
relative: without keys that stay at the head of the text, they change nothing.
"""

from __future__ import annotations

from typing import Any, ClassVar

from paceline.networks.base import Geometry
from paceline.networks.eagle3 import Eagle3
from paceline.options import require


class LongSpec(Eagle3):
    """Drafts one token per pass of its layer, over a window of the text."""

    name: ClassVar[str] = "longspec"

    def __init__(
        self, geometry: Geometry, *, steps: int = 5, ffn_size: int = 0, reach: int = 512
    ) -> None:
        """Size the network.

        Args:
            geometry: of the target.
            steps: most tokens of one draft.
            ffn_size: of the layer; 0 takes the target's own.
            reach: rows that the layer sees, its own included.

        Raises:
            InvalidOption: a size is below 1.
        """
        super().__init__(geometry, steps=steps, ffn_size=ffn_size)
        require(reach >= 1, "reach", reach, "1 or more")
        self.reach = reach

    def settings(self) -> dict[str, Any]:
        """All sizes."""
        return {**super().settings(), "reach": self.reach}
