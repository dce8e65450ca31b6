"""Dream's schedule (arXiv:2508.15487): times from 1 to 0, and what is shown between two of them."""

from __future__ import annotations

from typing import ClassVar, Literal

import numpy as np

from paceline.core.options import within
from paceline.core.types import IntArray
from paceline.denoising.canvas import Canvas
from paceline.denoising.counts import chances, worth
from paceline.denoising.process import Decision, View, best
from paceline.denoising.unmasking import Rule
from paceline.sampling.randomness import Purpose

# The last time, as in Dream.
LEAST = 1e-3


class Dream(Rule):
    """Fill a share 1 - s / t of the masks from time t to s; a step of none takes no forward."""

    name: ClassVar[str] = "dream"
    paper = "Dream, Ye et al. 2025, arXiv:2508.15487"
    scheduled = True

    def __init__(
        self,
        steps: int = 32,
        by: Literal["origin", "confidence", "margin", "entropy"] = "origin",
        alg_temp: float = 0.0,
    ) -> None:
        """Set how many steps, and which places.

        Args:
            steps: times of a block.
            by: "origin" fills each place independently with this chance; the others the surest.
            alg_temp: above 0 draws places without replacement, by softmax(worth / alg_temp).
        """
        within("steps", steps, 1, 1024)  # one that fills nothing takes time all the same
        within("alg_temp", alg_temp, 0, 1e6, "0 for the surest places")
        self._times = np.linspace(1, LEAST, steps + 1)
        self._by, self._alg_temp = by, alg_temp

    def begin(self, canvas: Canvas) -> list[int]:
        return [0]

    def choose(self, view: View, state: list[int]) -> Decision:
        fill: IntArray = np.zeros(0, dtype=np.int64)
        while not len(fill):
            step = state[0]
            state[0] += 1
            fill = self._at(view, step)
        return Decision(fill)

    def _at(self, view: View, step: int) -> IntArray:
        if step >= len(self._times) - 2:
            return np.arange(len(view.places))
        share = 1 - self._times[step + 1] / self._times[step]
        if self._by == "origin":
            return np.flatnonzero(chances(view, step, Purpose.TARGET) < share)
        count = int(len(view.places) * share)
        if not count:
            return np.zeros(0, dtype=np.int64)
        value = worth(view, self._by)
        if self._alg_temp:
            noise = -np.log(-np.log(chances(view, step, Purpose.TARGET)))
            value = value + self._alg_temp * noise
        return best(value, count)
