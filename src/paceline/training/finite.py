"""A loss that is no number stops a run, before the weights that it would spoil are saved."""

from __future__ import annotations

import math
from pathlib import Path

from paceline.errors import InvalidOption


def check_finite(loss: float, step: int, checkpoint: Path | None) -> None:
    """Raise unless a loss is a finite number; call it before the step's update is made.

    Args:
        loss: of the step.
        step: from 0.
        checkpoint: the last one saved, or None if there is none yet.

    Raises:
        InvalidOption: it is NaN or infinite; the message says how to go on.
    """
    if math.isfinite(loss):
        return
    kept = f"go on from {checkpoint}, which is whole," if checkpoint else "begin again"
    raise InvalidOption(
        f"the loss is {loss} at step {step}: {kept} with a lower learning rate, a longer warm-up "
        "or tighter gradient clipping"
    )
