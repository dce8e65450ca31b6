"""Profile of a forward: seconds by group of operations."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass

# Groups by the last part of an operation's name: matmuls have that of their first matrix.
_GROUPS = {
    "q": "product qkv",
    "o": "product o",
    "gate": "product gate-up",
    "down": "product down",
    "head": "product LM head",
    "attention": "attention",
    "gather": "gathers and norms",
}
_REST = "the rest"

# All groups, in table order.
GROUPS = (*_GROUPS.values(), _REST)


@dataclass(frozen=True, slots=True)
class Counted:
    """Mean profile of some inferences.

    Attributes:
        seconds: of the whole inference.
        groups: seconds by group, in the order of `GROUPS`.
    """

    seconds: float
    groups: dict[str, float]


def by_group(operations: Iterable[tuple[str, float]]) -> dict[str, float]:
    """Sum seconds of operations, given by name, by group."""
    found: dict[str, float] = defaultdict(float)
    for name, seconds in operations:
        found[_GROUPS.get(name.rpartition(".")[2], _REST)] += seconds
    return {name: found[name] for name in GROUPS}
