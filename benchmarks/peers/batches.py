"""Prompts that are answered together, and an engine that is asked to."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import chain
from typing import Any, TypeVar

from paceline.audit.engine import Timing
from paceline.audit.remote import JsonlEngine
from paceline.errors import InvalidOption

Item = TypeVar("Item")

Ids = tuple[int, ...]
"""A prompt, or a text."""


def batches(items: Sequence[Item], size: int) -> list[tuple[Item, ...]]:
    """All of them, `size` at a time; the last batch is filled up with the first ones.

    Raises:
        InvalidOption: there are fewer than `size`, so that a batch would hold one of them twice.
    """
    if size > len(items):
        raise InvalidOption(
            f"--batch {size} needs as many prompts, and there are {len(items)}: give a larger "
            "--limit, or more --prompts"
        )
    around = [*items, *items]
    return [tuple(around[place : place + size]) for place in range(0, len(items), size)]


def rotations(prompt: Ids, count: int) -> tuple[Ids, ...]:
    """Prompts of the same tokens that do not begin alike, so that no prefix is shared."""
    places = [number % len(prompt) for number in range(count)]
    return tuple(prompt[place:] + prompt[:place] for place in places)


def texts(timing: Timing, count: int) -> list[tuple[int | str, ...]]:
    """The `count` texts of a batch's timing: its tokens hold one after the other, equally long."""
    size = len(timing.tokens) // count
    return [timing.tokens[place : place + size] for place in range(0, size * count, size)]


class BatchEngine(JsonlEngine):
    """An engine in a process of its own that also answers requests of the kind "batch":

        {"batch": {"prompts": [[1, 2], [3]], "speculation": true, "tokens": 2}}
            ->  {"tokens": [[5, 3], [4, 4]], "seconds": 0.2, "first_seconds": 0.1,
                 "first_tokens": 2}

    It is a "time" request for several prompts; its first tokens are all that are out when the last
    text begins.
    """

    @property
    def process(self) -> int:
        """Its process id."""
        return self._process.pid

    def ask(self, kind: str, request: Mapping[str, Any]) -> dict[str, Any]:
        """The answer to a request of another kind; EngineFailed if there is none."""
        return self._say(kind, dict(request))

    def time_batch(self, prompts: Sequence[Ids], speculation: bool, tokens: int) -> Timing:
        """Greedy answers of `tokens` tokens each, with the times of all of them together.

        Returns:
            What `texts` takes apart; `seconds` from the request to the last token of all.

        Raises:
            EngineFailed: as for `time`, which answers a single prompt.
        """
        if len(prompts) == 1:
            return self.time(prompts[0], speculation, tokens)
        said = self._say(
            "batch", {"prompts": prompts, "speculation": speculation, "tokens": tokens}
        )
        try:
            rows = said.pop("tokens")
            timing = Timing(tuple(chain.from_iterable(rows)), **said)
            wrong = [len(row) for row in rows] != [tokens] * len(prompts) or not (
                timing.seconds > 0 and timing.first_seconds > 0
            )
        except (KeyError, TypeError):
            wrong = True
        if wrong:
            raise self._wrong(f"it did not time {len(prompts)} texts of {tokens} tokens")
        return timing
