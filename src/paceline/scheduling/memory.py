"""Key-value memory as the scheduler sees it: how many blocks a request, or a draft, may take.

What is decided here depends on lengths and budgets alone. So a budget that is cut for want of
memory is cut before any token is drafted (predictability), and drawn drafts keep their law.
"""

from __future__ import annotations

from collections.abc import Sequence as List
from dataclasses import replace
from typing import Protocol, runtime_checkable

from paceline.sequence import Sequence
from paceline.target import Target
from paceline.types import Budget

PLAIN_ROWS = 2
"""Positions that a step without a draft writes: the root, and a second row that keeps the kernel
of attention the same (see the CPU runtime)."""


class BlockCache(Protocol):
    """A sequence's cache where memory comes in blocks."""

    @property
    def length(self) -> int:
        """Number of cached tokens."""
        ...

    def needed(self, tokens: int) -> int:
        """Blocks that the next `tokens` positions take from the memory."""
        ...

    def reserve(self, tokens: int) -> None:
        """Take them now; raises OutOfMemory."""
        ...

    def share(self, tokens: List[int]) -> None:
        """Go on from what others have cached of the head of `tokens`, if that is more."""
        ...

    def publish(self, tokens: List[int]) -> None:
        """Let others begin with what this cache holds of `tokens`."""
        ...


class Memory(Protocol):
    """Blocks of `block` tokens, `blocks` in all, of which `free` can be had now."""

    sharing: bool
    """Whether sequences begin with what others have cached of their heads."""

    @property
    def block(self) -> int:
        """Tokens per block."""
        ...

    @property
    def blocks(self) -> int:
        """Blocks that sequences may hold, in all."""
        ...

    @property
    def free(self) -> int:
        """Blocks that no sequence holds."""
        ...

    @property
    def bytes_per_token(self) -> int:
        """Memory that a cached token takes."""
        ...


@runtime_checkable
class Paged(Protocol):
    """A target whose memory has a limit that it can state; its caches are `BlockCache`s."""

    @property
    def memory(self) -> Memory:
        """What all its caches share."""
        ...


def memory_of(target: Target) -> Memory | None:
    """The memory of a target, or None if it does not state any."""
    return target.memory if isinstance(target, Paged) else None


def keep_apart(target: Target) -> None:
    """Let sequences share no prefixes from now on, where they would.

    Of engines that are compared on the same prompts, one would read what others then find cached.
    """
    memory = memory_of(target)
    if memory is not None:
        memory.sharing = False


def capacity(memory: Memory) -> int:
    """Tokens that all sequences together may have cached."""
    return memory.block * memory.blocks


def fits(memory: Memory, cache: BlockCache, tokens: int, running: int) -> bool:
    """Whether a cache may grow to `tokens` beside that many running sequences.

    Each of them, and the newcomer, shall find one more block before anybody is preempted.
    """
    spare = running + 1 if running else 0
    return cache.needed(tokens - cache.length + PLAIN_ROWS) + spare <= memory.free


def plain_step_fits(memory: Memory, sequences: List[Sequence]) -> bool:
    """Whether one step of all sequences finds memory if nothing is drafted."""
    if len(sequences) * _most(memory, PLAIN_ROWS) <= memory.free:
        return True  # as in all steps but few: no need to look closer
    needed: int = sum(sequence.cache.needed(PLAIN_ROWS) for sequence in sequences)
    return needed <= memory.free


def with_draft(memory: Memory, cache: BlockCache, budget: Budget) -> int:
    """The most blocks that a step takes for a draft within `budget`, whatever its shape.

    The first path lies in the sequence's own blocks; every other, and there is one per node at
    most, takes a copy of the last block and room for itself.
    """
    rows = max(PLAIN_ROWS, 1 + min(budget.nodes, budget.depth))
    path = -(-(cache.length % memory.block + rows) // memory.block)
    return cache.needed(rows) + max(0, budget.nodes - 1) * path


def fitted(memory: Memory | None, sequences: List[Sequence], budgets: List[Budget]) -> list[Budget]:
    """Budgets cut to equal sizes, as far as must be, so that all drafts find memory.

    A step without drafts is not checked: the scheduler sees to that.
    """
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


def _drafts_fit(memory: Memory, sequences: List[Sequence], budgets: List[Budget]) -> bool:
    paths, rows = 0, PLAIN_ROWS
    for budget in budgets:
        paths += max(1, budget.nodes)
        rows = max(rows, 1 + min(budget.nodes, budget.depth))
    if paths * _most(memory, rows) <= memory.free:
        return True  # as in all steps but few
    pairs = zip(sequences, budgets, strict=True)
    return sum(with_draft(memory, s.cache, budget) for s, budget in pairs) <= memory.free


def _most(memory: Memory, rows: int) -> int:
    """The most blocks that a path of so many rows takes: what holds the rows, and one more, since
    they may begin inside a block, which is copied where others read it."""
    return -(-rows // memory.block) + 1
