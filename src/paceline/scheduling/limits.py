"""What an engine takes on at most, and the error of a request beyond that."""

from __future__ import annotations

from dataclasses import dataclass

from paceline.errors import PacelineError
from paceline.options import require


class QueueFull(PacelineError):
    """As many requests are waiting as may wait: try again once some have ended."""


@dataclass(frozen=True, slots=True)
class Limits:
    """How many requests, and how many rows in a forward.

    Attributes:
        running: most sequences decoded together.
        waiting: most requests that wait for a place; None sets no limit.
        step_tokens: most rows of a forward that reads prompts beside running requests; None
            chooses by what forwards cost. At least 16 prompt tokens are read in any case.
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
