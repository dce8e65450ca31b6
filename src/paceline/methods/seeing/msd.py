"""MSD: what is seen and what is said are read apart (Lin et al. 2025, arXiv:2505.14260).

All rows of a picture stand in the context, as the target was given them: neither fused with its
features nor with an embedding. Training begins with texts alone; from its middle on, more and more
batches show pictures.
"""

from __future__ import annotations

from typing import ClassVar

from paceline.methods.seeing.drafter import SeeingDrafter
from paceline.methods.seeing.sight import SeeingNetwork


class Msd(SeeingNetwork):
    """EAGLE-3's layer over all rows of pictures."""

    name: ClassVar[str] = "msd"

    def share_of_pictures(self, progress: float) -> float:
        return max(0.0, 2 * progress - 1)


class MsdDrafter(SeeingDrafter):
    name: ClassVar[str] = "msd"
    paper = "after MSD, Lin et al. 2025, arXiv:2505.14260"
