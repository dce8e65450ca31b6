"""Chunked prefill: prompt tokens per forward beside decoding (Sarathi-Serve, arXiv:2403.02310).

The fixed cost of a forward is paid once for both, so small chunks cost no more per token than
large ones. The delay of running requests alone sets the chunk size.
"""

from __future__ import annotations

from collections.abc import Sequence as List
from typing import NamedTuple

from paceline.controllers.cost import CostModel
from paceline.sequence import Sequence

# Chunk size while no request decodes; larger ones are no cheaper.
ALONE = 512

# Smallest chunk under a user's limit: prefill must always progress.
LEAST = 16

# Chunk size beside decoding if costs are unknown, else the smallest. Slower prefill would leave
# the batch below its full size for longer.
BESIDE = 64

# Longest step with a chunk, as a multiple of the step without.
_SLOWER = 3.0


# Common tokens from which waiting for another's prefill beats prefilling them twice.
_WORTH_WAITING = 64


class Chunk(NamedTuple):
    """The next `tokens` tokens of a sequence to prefill."""

    sequence: Sequence
    tokens: int


def beside(rows: int, costs: CostModel | None, limit: int | None = None) -> int:
    """Return the number of prompt tokens to prefill in one forward beside `rows` running requests.

    `limit` is the user's maximum of rows per forward; None goes by measured `costs`.
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
    """Distribute `tokens` over sequences in prefill, first come, first served.

    With a prefix cache of `block` tokens a sequence waits for another that prefills its prefix.
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
    common = 0
    for end in range(block, min(len(first.tokens), len(second.tokens)), block):
        if first.tokens[end - block : end] != second.tokens[end - block : end]:
            break
        common = end
    cached: int = max(first.cache.length, second.cache.length)
    return common - cached >= _WORTH_WAITING
