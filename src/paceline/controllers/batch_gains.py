"""What drafted nodes of a batch gain, in tokens of its plain decoding."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate

_ALONE = 0.5
"""Worth of a token that one sequence gains beyond the others, where nobody waits for its place: its
own user is served sooner, and the others are held up by its rows."""


def batch_gains(ranked: Sequence[tuple[float, int]], roots: int, queue: int) -> list[float]:
    """What a step is worth with the first 0, 1, ... of the ranked nodes, in tokens.

    Where others wait for a place, every token counts as much. Where nobody does, a batch lasts as
    long as its slowest sequence: tokens count in full as far as all sequences gain them.

    Args:
        ranked: probability of acceptance and index of the sequence of each node, best first.
        roots: sequences in the batch.
        queue: requests that wait.

    Returns:
        One number more than there are nodes, the first of them `roots`.
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
