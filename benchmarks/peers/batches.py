"""Prompts that are answered together."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeVar

from paceline.errors import InvalidOption
from paceline.lab.audit.engine import Timing

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
