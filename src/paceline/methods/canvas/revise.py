"""Filled places get new tokens: ReDiff (arXiv:2510.19871), LLaDA2.1 (arXiv:2602.08676)."""

from __future__ import annotations

from typing import Any, ClassVar, NamedTuple

import numpy as np

from paceline.core.options import within
from paceline.denoising.canvas import Canvas
from paceline.denoising.counts import MOST
from paceline.denoising.process import Decision, View, best
from paceline.denoising.unmasking import Rule, Wrapper


class _ReviseState(NamedTuple):
    steps: list[int]  # of the block, and edits
    inner: Any


class Revise(Wrapper):
    """Beside what the inner rule fills, overwrite filled places of the block by their new picks."""

    name: ClassVar[str] = "revise"
    requires = "a rule: revise>counts; a denoiser that was trained to read wrong tokens"
    paper = "after ReDiff, Ji et al. 2025, arXiv:2510.19871"

    def __init__(
        self, inner: Rule, share: float = 1.0, after: int = 0, least: float = 0.0, most: int = 0
    ) -> None:
        """Set which are overwritten.

        Args:
            inner: fills masks.
            share: of the filled places, the surest.
            after: steps of a block before the first edit.
            least: probability that a new token exceeds (LLaDA2.1: 0.5, or 0 for speed).
            most: edits a block; 0 sets no limit.
        """
        super().__init__(inner)
        within("share", share, 0, 1, "0 for no edits")
        within("after", after, 0, MOST)
        within("least", least, 0, 1)
        within("most", most, 0, MOST, "0 for no limit")
        self._share, self._after, self._least, self._most = share, after, least, most
        self.reads_filled, self.monotone, self.ignores_draws = True, False, False

    def begin(self, canvas: Canvas) -> _ReviseState:
        return _ReviseState([0, 0], self.inner.begin(canvas))

    def view(self, view: View, state: _ReviseState) -> View:
        return self.inner.view(view, state.inner)

    def choose(self, view: View, state: _ReviseState) -> Decision:
        choice = self.inner.choose(view, state.inner)
        step, edits = state.steps
        state.steps[0] += 1
        seen = view.filled
        if seen is None or step < self._after:
            return choice
        top = best(seen.confidence, int(np.ceil(self._share * len(seen.places))))
        changed = [
            (int(seen.places[i]), int(seen.picks[i]))
            for i in top
            if view.canvas.tokens[seen.places[i]] != seen.picks[i] and seen.picked[i] > self._least
        ]
        if self._most:
            changed = changed[: self._most - edits]
        state.steps[1] += len(changed)
        return choice._replace(edit=[*choice.edit, *changed])
