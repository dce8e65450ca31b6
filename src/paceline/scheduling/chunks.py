"""How much of the waiting prompts is read beside a step of the running requests.

A running request waits for the whole forward, so every prompt token that rides along delays it;
but the forward's fixed cost is paid once for both (chunked prefill: Agrawal et al. 2024, "Sarathi-
Serve", arXiv:2403.02310, section 4). Beside a step that is made anyway a small chunk is therefore
no dearer per token than a large one, and its size is chosen by the delay alone.
"""

from __future__ import annotations

from collections.abc import Sequence as List
from typing import NamedTuple

from paceline.controllers.cost import CostModel
from paceline.sequence import Sequence

ALONE = 512
"""Prompt tokens per forward while nobody waits for a token: larger ones are no cheaper."""

LEAST = 16
"""Fewest prompt tokens per forward under a user's limit: a prompt is read to its end however full
the machine is."""

BESIDE = 64
"""Prompt tokens beside a step where costs are not known, and the fewest where they are: who reads
more slowly makes the whole batch wait for its full size."""

_SLOWER = 3.0
"""A step may take this many times as long as without a chunk."""


_WORTH_WAITING = 64
"""Tokens in common that take longer to read twice than a forward more takes to start."""


class Chunk(NamedTuple):
    """The next `tokens` tokens of a sequence, to be cached."""

    sequence: Sequence
    tokens: int


def beside(rows: int, costs: CostModel | None, limit: int | None = None) -> int:
    """Prompt tokens to read in one forward.

    Args:
        rows: of the running requests in that forward, one each; 0 if nobody waits.
        costs: what forwards cost, if known.
        limit: most rows of the forward in all, as the user set it; None goes by the costs.
    """
    if not rows:
        return ALONE if limit is None else min(limit, ALONE)
    if limit is not None:
        return max(LEAST, limit - rows)
    if costs is None:
        return BESIDE
    longest = _SLOWER * costs.time(rows, rows)
    low, high = BESIDE, ALONE  # times never decrease with rows
    while low < high:
        middle = (low + high + 1) // 2
        low, high = (
            (middle, high) if costs.time(rows + middle, rows) <= longest else (low, middle - 1)
        )
    return low


def shared_out(reading: List[Sequence], tokens: int, block: int | None = None) -> list[Chunk]:
    """`tokens` shared out among sequences that are still to be read, the first first.

    Args:
        reading: the sequences.
        tokens: in all.
        block: tokens per block where sequences share those they have in common. Who would read
            what another is reading waits for it.
    """
    chunks: list[Chunk] = []
    for sequence in reading:
        if block and any(_reads_for(chunk.sequence, sequence, block) for chunk in chunks):
            continue
        size = min(sequence.unread, tokens)
        if size:
            chunks.append(Chunk(sequence, size))
        tokens -= size
    return chunks


def _reads_for(first: Sequence, second: Sequence, block: int) -> bool:
    """Whether the first is about to cache so much of the second's head that waiting pays."""
    common = 0
    for end in range(block, min(len(first.tokens), len(second.tokens)), block):
        if first.tokens[end - block : end] != second.tokens[end - block : end]:
            break
        common = end
    cached: int = max(first.cache.length, second.cache.length)
    return common - cached >= _WORTH_WAITING
