"""Filled places get new tokens: ReDiff (arXiv:2510.19871), LLaDA2.1 (arXiv:2602.08676)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar, NamedTuple

import numpy as np

from paceline.core.options import within
from paceline.core.types import LogitArray
from paceline.denoising.canvas import Canvas
from paceline.denoising.counts import MOST
from paceline.denoising.process import Context, Decision, View, best
from paceline.denoising.unmasking import Rule, Unmasking, Wrapper


class _ReviseState(NamedTuple):
    steps: list[int]  # of the block, edits, and steps of edits alone
    inner: Any


class Revise(Wrapper):
    """Beside what the inner rule fills, overwrite filled places of the block by their new picks."""

    name: ClassVar[str] = "revise"
    requires = "a rule: revise>counts; a denoiser that was trained to read wrong tokens"
    paper = "after ReDiff, Ji et al. 2025, arXiv:2510.19871"

    def __init__(
        self,
        inner: Rule,
        share: float = 1.0,
        after: int = 0,
        least: float = 0.0,
        most: int = 0,
        post: int = 0,
    ) -> None:
        """Set which are overwritten.

        Args:
            inner: fills masks.
            share: of the filled places, the surest.
            after: steps of a block before the first edit.
            least: probability that a new token exceeds (LLaDA2.1: 0.5, or 0 for speed).
            most: edits a block; 0 sets no limit.
            post: steps of edits alone, at most, of a full block, up to one that changes nothing
                (LLaDA2.1: 16).
        """
        super().__init__(inner)
        within("share", share, 0, 1, "0 for no edits")
        within("after", after, 0, MOST)
        within("least", least, 0, 1)
        within("most", most, 0, MOST, "0 for no limit")
        within("post", post, 0, 64)
        self.post, self.standard = post, not post  # type: ignore[misc]
        self._share, self._after, self._least, self._most = share, after, least, most
        self.reads_filled, self.monotone, self.ignores_draws = True, False, False

    def begin(self, canvas: Canvas) -> _ReviseState:
        return _ReviseState([0, 0, 0], self.inner.begin(canvas))

    def view(self, view: View, state: _ReviseState) -> View:
        return self.inner.view(view, state.inner)

    def choose(self, view: View, state: _ReviseState) -> Decision:
        choice = self.inner.choose(view, state.inner)
        state.steps[0] += 1
        if view.filled is None or state.steps[0] <= self._after:
            return choice
        changed = self.edits(view.filled, state)
        return choice._replace(edit=[*choice.edit, *changed])

    def edits(self, seen: View, state: _ReviseState) -> list[tuple[int, int]]:
        """Return filled places and their new tokens."""
        top = best(seen.confidence, int(np.ceil(self._share * len(seen.places))))
        changed = [
            (int(seen.places[i]), int(seen.picks[i]))
            for i in top
            if seen.canvas.tokens[seen.places[i]] != seen.picks[i] and seen.picked[i] > self._least
        ]
        if self._most:
            changed = changed[: self._most - state.steps[1]]
        state.steps[1] += len(changed)
        return changed

    def process(self, context: Context) -> Unmasking:
        return _Open(context, self) if self.post else super().process(context)


class _Open(Unmasking):
    """Full blocks stay open for steps of edits alone; under a constraint they do not."""

    rule: Revise

    def take(self, logits: LogitArray) -> Sequence[int]:
        if not len(self.canvas.masked()):
            seen = self.filled(self.by_place(logits))
            changed = [] if seen is None else self.rule.edits(seen, self.state)
            self.edit(changed)
            self.state.steps[2] += 1 if changed else self.rule.post
            self.canvas.step += 1
        return super().take(logits)

    def settle(self) -> None:
        full = self._constraint is None and not len(self.canvas.masked())
        if full and self.state.steps[2] < self.rule.post:
            self.fresh = False
        else:
            super().settle()
