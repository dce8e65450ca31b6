"""A fixed number of places a step: LLaDA (arXiv:2502.09992), Dream (arXiv:2508.15487)."""

from __future__ import annotations

from typing import ClassVar, Literal

from paceline.core.options import within
from paceline.core.types import ProbArray
from paceline.denoising.canvas import Canvas
from paceline.denoising.process import Decision, View, best
from paceline.denoising.unmasking import Rule
from paceline.sampling.randomness import Draw, Purpose

# Places or steps of a block, at most.
MOST = 65536

Order = Literal["confidence", "picked", "margin", "entropy", "random", "leftmost"]


class Counts(Rule):
    """Fill the surest `per_step` places, or spread a block over `steps`."""

    name: ClassVar[str] = "counts"
    guarantee = "the sequential denoiser at one place a step"
    paper = "LLaDA, Nie et al. 2025, arXiv:2502.09992; Dream, Ye et al. 2025, arXiv:2508.15487"

    def __init__(self, per_step: int = 1, steps: int = 0, by: Order = "confidence") -> None:
        """Set how many places, and which.

        Args:
            per_step: places a step.
            steps: steps of a block, which take the remainder first; 0 goes by `per_step`.
            by: the largest probability, that of the pick (LLaDA; drawn anew each step), the margin
                of the two most likely, the least entropy, chance, or from the left.
        """
        within("per_step", per_step, 1, MOST)
        within("steps", steps, 0, MOST, "0 to go by per_step")
        self._per_step, self._steps, self._by = per_step, steps, by
        self.fresh = by == "picked"
        self.ignores_draws, self.scheduled = not self.fresh, steps > 0

    def begin(self, canvas: Canvas) -> list[int]:
        if not self._steps:
            return []
        left = len(canvas.masked())
        each, more = divmod(left, self._steps)
        return [each + (step < more) for step in range(min(self._steps, left))]

    def choose(self, view: View, state: list[int]) -> Decision:
        count = state.pop(0) if state else self._per_step
        return Decision(best(worth(view, self._by), count))


def worth(view: View, by: Order) -> ProbArray:
    """Return float64 `[masked]`, how early each place is filled: the largest first."""
    if by == "random":
        return chances(view, view.canvas.step, Purpose.TARGET)
    if by == "leftmost":
        return -view.places.astype(float)
    if by == "entropy":
        return -view.entropy
    found: ProbArray = getattr(view, by)
    return found


def chances(view: View, step: int, purpose: Purpose) -> ProbArray:
    """Return float64 `[masked]`, uniform in (0, 1), a draw of its own for each place and step."""
    size = len(view.canvas.tokens)
    return view.randomness.uniform(size, Draw(step, purpose))[view.places]
