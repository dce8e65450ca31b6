"""Limits of an engine, and the error of a request beyond them."""

from __future__ import annotations

from dataclasses import dataclass

from paceline.errors import PacelineError
from paceline.options import require


class QueueFull(PacelineError):
    """The request queue is full: try again once some have ended."""


@dataclass(frozen=True, slots=True)
class Limits:
    """Most sequences decoded together, most queued requests, most rows of a forward that combines
    prefill and decoding. None sets no limit, or chooses rows by measured costs.
    """

    running: int = 8
    waiting: int | None = None
    step_tokens: int | None = None

    def __post_init__(self) -> None:
        require(self.running >= 1, "max_batch", self.running, "1 or more")
        require(self.waiting is None or self.waiting >= 0, "max_waiting", self.waiting, "0 or more")
        require(
            self.step_tokens is None or self.step_tokens >= 1,
            "step_tokens",
            self.step_tokens,
            "1 or more",
        )
