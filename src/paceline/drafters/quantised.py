"""The target's own weights, coarser, as drafter (Tiwari et al. 2025, QuantSpec, section 4).

At int8 a model agrees with itself at fp32 in all but a few tokens, and reads a quarter of the
bytes. What it drafts is checked at full precision, so the text is that of the full model.
"""

from __future__ import annotations

from typing import ClassVar

from paceline.drafters.base import DrafterContext
from paceline.drafters.draft_model import DraftModel
from paceline.errors import RuntimeUnavailable
from paceline.target import Target


class Quantised(DraftModel):
    """Drafts with the target at int8."""

    name: ClassVar[str] = "quantised"

    @classmethod
    def _load(cls, context: DrafterContext) -> Target:
        """The weights a second time.

        Raises:
            RuntimeUnavailable: the target is as coarse itself, or its runtime has no int8.
        """
        if context.coarser is None:
            raise RuntimeUnavailable(
                "drafter 'quantised' drafts at int8 for a model at fp32: use it with --runtime "
                "openvino --precision fp32, or choose another drafter"
            )
        return context.coarser()
