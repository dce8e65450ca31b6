"""Paged key-value memory: block counts of requests and drafts.

Budgets are cut by lengths alone, before any token is drafted (predictability), so sampled drafts
keep their distribution.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Protocol, cast

from paceline.core.target import Target
from paceline.core.types import Budget
from paceline.sampling.generation import Generation


class BlockCache(Protocol):
    """A sequence's paged cache."""

    @property
    def length(self) -> int: ...

    def needed(self, tokens: int) -> int:
        """Return the number of new blocks for the next `tokens` positions."""
        ...

    def reserve(self, tokens: int) -> None:
        """Allocate them now; raises OutOfMemory."""
        ...

    def share(self, tokens: Sequence[int]) -> None:
        """Take the longest cached prefix of `tokens` from the prefix cache, if it is longer."""
        ...

    def publish(self, tokens: Sequence[int], ended: bool = False) -> None:
        """Add this cache's blocks of `tokens` to the prefix cache."""
        ...

    def mark(self, length: int) -> None:
        """Note that later sequences want to go on from there."""
        ...

    def unmarked(self, tokens: int) -> int:
        """Return how many of the next `tokens` positions one chunk may take."""
        ...


class Memory(Protocol):
    """Paged memory of a target."""

    # Prefix sharing between sequences.
    sharing: bool

    @property
    def block(self) -> int: ...

    @property
    def blocks(self) -> int: ...

    @property
    def free(self) -> int: ...

    @property
    def bytes_per_token(self) -> int: ...

    @property
    def sequences(self) -> int | None:
        """Most sequences beside one another; None for any number."""
        ...

    @property
    def nodes(self) -> int | None:
        """Most rows of drafts in a forward; None for any number."""
        ...


class Paged(Target, Protocol):
    """A target of `Capabilities.paged`; its caches are `BlockCache`s."""

    @property
    def memory(self) -> Memory: ...


def memory_of(target: Target) -> Memory | None:
    """Return the paged memory of a target, or None."""
    return cast(Paged, target).memory if target.capabilities.paged else None


def keep_apart(target: Target) -> None:
    """Disable prefix sharing, for fair comparison of engines on the same prompts."""
    memory = memory_of(target)
    if memory is not None:
        memory.sharing = False


def capacity(memory: Memory) -> int:
    """Return the number of tokens that all sequences together may have cached."""
    return memory.block * memory.blocks


def fits(memory: Memory, cache: BlockCache, tokens: int, running: int) -> bool:
    """Return whether a cache may extend to `tokens` with one spare block per running sequence."""
    spare = running + 1 if running else 0
    return cache.needed(tokens - cache.length + 1) + spare <= memory.free


def plain_step_fits(memory: Memory, sequences: Sequence[Generation]) -> bool:
    """Return whether one step of all sequences without drafts fits into memory."""
    return _drafts_fit(memory, sequences, [Budget(0, 0)] * len(sequences))


def with_draft(cache: BlockCache, budget: Budget) -> int:
    """Return the most blocks that a step takes for a draft within `budget`, whatever its shape."""
    return cache.needed(1 + budget.nodes)


def fitted(
    memory: Memory | None, sequences: Sequence[Generation], budgets: Sequence[Budget]
) -> list[Budget]:
    """Return budgets cut to a common size so that all drafts fit into memory."""
    if memory is None or not any(budget.nodes for budget in budgets):
        return list(budgets)
    if _drafts_fit(memory, sequences, budgets):
        return list(budgets)
    for most in range(max(budget.nodes for budget in budgets) - 1, 0, -1):
        cut = [
            replace(budget, nodes=min(budget.nodes, most), depth=min(budget.depth, most))
            for budget in budgets
        ]
        if _drafts_fit(memory, sequences, cut):
            return cut
    return [Budget(0, 0)] * len(budgets)


def _drafts_fit(memory: Memory, sequences: Sequence[Generation], budgets: Sequence[Budget]) -> bool:
    if memory.nodes is not None and sum(each.nodes for each in budgets) > memory.nodes:
        return False
    # One block more than the rows fill: they may begin inside one, which is copied if shared.
    most = -(-(1 + max((each.nodes for each in budgets), default=0)) // memory.block) + 1
    if len(budgets) * most <= memory.free:
        return True  # as in all steps but few: no need to look closer
    pairs = zip(sequences, budgets, strict=True)
    return sum(with_draft(s.cache, budget) for s, budget in pairs) <= memory.free
