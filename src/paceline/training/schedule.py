"""What changes as training goes on, as pure functions of the step, so that a run resumes exactly.

A step is an update of the weights, counted from 0.
"""

from __future__ import annotations

import math

import numpy as np

from paceline.options import require


def warm_up(step: int, steps: int) -> float:
    """Factor that rises in equal parts, from 1 / `steps` at the first step to 1 at the last."""
    return min(1.0, (step + 1) / steps) if steps else 1.0


def constant(step: int, *, peak: float, warm: int = 0) -> float:
    """Learning rate that stays at its peak.

    Args:
        step: from 0.
        peak: highest rate.
        warm: steps of linear warm-up.
    """
    return peak * warm_up(step, warm)


def cosine(step: int, *, peak: float, steps: int, warm: int = 0, floor: float = 0.0) -> float:
    """Learning rate that falls along half a cosine (Loshchilov and Hutter 2017, arXiv:1608.03983).

    Args:
        step: from 0.
        peak: highest rate, reached at the last step of the warm-up.
        steps: of the whole run, the warm-up included.
        warm: steps of linear warm-up.
        floor: rate at the last step, and at all beyond it.

    Raises:
        InvalidOption: the warm-up fills the run, or the floor is above the peak.
    """
    require(0 <= warm < steps, "warm-up", warm, f"0 to {steps - 1} of {steps} steps")
    require(0 <= floor <= peak, "floor", floor, f"0 to the peak of {peak}")
    if step < warm:
        return peak * warm_up(step, warm)
    first = max(0, warm - 1)  # the step that has the full rate
    done = min(1.0, (step - first) / max(1, steps - 1 - first))
    return floor + (peak - floor) * 0.5 * (1 + math.cos(math.pi * done))


def on_policy_share(step: int, *, first: float, last: float, steps: int) -> float:
    """Share of batches written by the drafter itself, from `first` to `last` in equal parts.

    Text of the target (off-policy) is to hand at once and teaches a drafter that knows nothing;
    its own text (on-policy) is what it will be judged on (DistillSpec, arXiv:2310.08461).

    Args:
        step: from 0.
        first: share at step 0, in [0, 1].
        last: share from step `steps` - 1 on, in [0, 1].
        steps: how long the way takes.

    Raises:
        InvalidOption: a share is out of range.
    """
    require(0 <= first <= 1, "first on-policy share", first, "in [0, 1]")
    require(0 <= last <= 1, "last on-policy share", last, "in [0, 1]")
    return first + (last - first) * min(1.0, step / max(1, steps - 1))


def is_on_policy(step: int, share: float, seed: int) -> bool:
    """Whether a step's batch is the drafter's own text: true for `share` of the steps.

    The draw is named by seed and step, so what was drawn before it does not matter.
    """
    return bool(np.random.default_rng((seed, step)).random() < share)
