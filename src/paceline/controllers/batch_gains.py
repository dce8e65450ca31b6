"""Gain of drafted nodes in a batch, in tokens of plain decoding."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate

# Worth of a token that one sequence gains beyond the others while no request waits: its user is
# served sooner, and the others are slowed by its rows.
_ALONE = 0.5


def batch_gains(ranked: Sequence[tuple[float, int]], roots: int, queue: int) -> list[float]:
    """Return the worth of a step with the first 0, 1, ... of the ranked nodes, in tokens.

    While requests wait, all tokens count alike. Otherwise a batch lasts as long as its slowest
    sequence: tokens count in full only as far as all sequences gain them.

    Args:
        ranked: acceptance probability and sequence index of each node, best first.
        roots: sequences in the batch.
        queue: requests that wait.
    """
    if roots == 1 or queue:
        return list(accumulate((value for value, _ in ranked), initial=float(roots)))
    own = [0.0] * roots
    total, out = 0.0, [float(roots)]
    for value, sequence in ranked:
        own[sequence] += value
        total += value
        shared = roots * min(own)
        out.append(roots + shared + _ALONE * (total - shared))
    return out
