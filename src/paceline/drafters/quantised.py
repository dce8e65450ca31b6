"""Self-speculation with the target's own weights at int8 (Tiwari et al. 2025, QuantSpec,
section 4). Drafts are verified at full precision, so the text is that of the full model.
"""

from __future__ import annotations

from typing import ClassVar

from paceline.drafters.base import DrafterContext
from paceline.drafters.draft_model import DraftModel
from paceline.errors import RuntimeUnavailable
from paceline.target import Target


class Quantised(DraftModel):
    """Draft with the target at int8."""

    name: ClassVar[str] = "quantised"

    @classmethod
    def _load(cls, context: DrafterContext) -> Target:
        # Raises RuntimeUnavailable: the target is int8 itself, or its runtime has no int8.
        if context.coarser is None:
            raise RuntimeUnavailable(
                "drafter 'quantised' drafts at int8 for a model at fp32: use it with --runtime "
                "openvino --precision fp32, or choose another drafter"
            )
        return context.coarser()
