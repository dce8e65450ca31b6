"""The best hierarchy of models (HSD, Mohri et al. 2025, arXiv:2510.19705), by expected latency.

With a chance a that a token of the model below stands, drafts of n tokens bring
1 + a + ... + a^n tokens a round, at the time of n tokens of the model below and of one forward
over n + 1 rows. So the seconds per token of a stack follow from those of the stack below, and more
of these never help: the best stack under each model is a shortest path.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

from paceline.core.options import require
from paceline.errors import InvalidOption

Seconds = Callable[[int], float]
"""Time of a model's forward over some rows."""


class Stack(NamedTuple):
    """Models from the bottom up, tokens that each asks of the one below (0 of the lowest), and
    seconds per token of the whole."""

    models: tuple[int, ...]
    drafts: tuple[int, ...]
    seconds: float


def tokens_per_round(chance: float, drafted: int) -> float:
    """Return 1 + a + ... + a^n, for a chance in [0, 1]."""
    return sum(chance**n for n in range(drafted + 1))


def seconds_per_token(below: float, forward: Seconds, chance: float, drafted: int) -> float:
    """Return the latency recursion's step: a model over a stack that takes `below` a token."""
    return (drafted * below + forward(drafted + 1)) / tokens_per_round(chance, drafted)


def best_stack(
    forwards: Sequence[Seconds], chances: Sequence[Sequence[float]], longest: int = 16
) -> Stack:
    """Return the stack of least latency whose top is the last model.

    Args:
        forwards: by model, the target last.
        chances: `[model][below]`, chance that a token of `below` stands in the text of `model`;
            entries from `model` on are not read.
        longest: most tokens drafted a round.

    Raises:
        InvalidOption: no model, chances that are none, or missing ones.
    """
    if not forwards:
        raise InvalidOption("a hierarchy needs a model: give the forwards of one or more")
    require(longest >= 1, "longest", longest, "1 or more")
    if len(chances) != len(forwards) or any(len(row) < i for i, row in enumerate(chances)):
        raise InvalidOption(
            f"{len(forwards)} models need a row of chances each, with one for every model below"
        )
    best: list[Stack] = []
    for model, forward in enumerate(forwards):
        found = [Stack((model,), (0,), forward(1))]
        for below, stack in enumerate(best):
            chance = chances[model][below]
            require(0 <= chance <= 1, f"chance of {below} below {model}", chance, "in [0, 1]")
            found += [
                Stack(
                    (*stack.models, model),
                    (*stack.drafts, drafted),
                    seconds_per_token(stack.seconds, forward, chance, drafted),
                )
                for drafted in range(1, longest + 1)
            ]
        best.append(min(found, key=lambda each: each.seconds))
    return best[-1]
