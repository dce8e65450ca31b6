"""When tokens come, of one text or of several that are generated together.

Standard library only, as `answering`.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any


class Arrivals:
    """Times a batch by what each step brings; the clock starts when it is made.

    The first tokens of a batch are all that are there when the last of its texts begins: until
    then prompts were read, and afterwards all texts are decoded together.
    """

    def __init__(self, texts: int, clock: Callable[[], float] = time.perf_counter) -> None:
        """Nothing yet of `texts` texts, timed in seconds of `clock`."""
        self._clock = clock
        self._begun = clock()
        self._rows: list[list[int]] = [[] for _ in range(texts)]
        self._last = 0.0
        self._first: tuple[float, int] | None = None

    def take(self, step: Mapping[int, Sequence[int]]) -> None:
        """New tokens by number of their text, from 0."""
        if not any(map(len, step.values())):
            return
        self._last = self._clock() - self._begun
        for text, tokens in step.items():
            self._rows[text] += map(int, tokens)
        if self._first is None and all(self._rows):
            self._first = self._last, sum(map(len, self._rows))

    def timing(self) -> dict[str, Any]:
        """The answer to a request of the kind "batch": a timing whose tokens are a row per text.

        Raises:
            RuntimeError: a text has no tokens.
        """
        if self._first is None:
            raise RuntimeError("a text of the batch has no tokens")
        first, count = self._first
        return {
            "tokens": self._rows,
            "seconds": self._last,
            "first_seconds": first,
            "first_tokens": count,
        }
