"""Hit rates of copied continuations, by match length and share of the occurrences.

Raw counts are poor estimates: a continuation seen once is unreliable after a short match and
nearly certain after a long one. So each bin has a hit rate learned from the committed tokens.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Sequence

import numpy as np

from paceline.drafters.best_first import FLOOR, Offer
from paceline.drafters.statistics import HitRates
from paceline.types import ProbArray

_EDGES = (2, 3, 4, 5, 6, 8, 12, 20)

_BUCKETS = tuple(bisect_right(_EDGES, length) for length in range(_EDGES[-1] + 1))

# Bins by match length.
LENGTHS = len(_EDGES) + 1

# Hit rates of "once, always so" by length of context, and of continuations among several, by
# their share of the occurrences. Measured on greedy texts of the default model; start values only.
_ALONE = (0.30, 0.56, 0.65, 0.70, 0.75, 0.79, 0.84, 0.91, 0.97)
_RIVALLED = (0.35, 0.17, 0.11, 0.05)
_SHARES = (0.1, 0.25, 0.5)

# Prior quality of another source, relative to the sequence's own text.
TRUST = 0.6


def length_kind(length: int) -> int:
    """Return the bin of a match length, 0 to `LENGTHS - 1`."""
    return _BUCKETS[length] if length <= _EDGES[-1] else LENGTHS - 1


def length_kinds(length: int, count: int) -> list[int]:
    """Return the bins of `count` consecutive match lengths from `length` on."""
    kinds = list(_BUCKETS[length : length + count])
    return kinds + [LENGTHS - 1] * (count - len(kinds))


def spread_kind(times: int, occurrences: int) -> int:
    """Return the bin of a continuation that followed `times` of `occurrences` occurrences.

    0 to 2: the only continuation, of one, two, or more occurrences. 3 to 6: one of several, with a
    share of at least half, a quarter, a tenth, or less.
    """
    if times == occurrences:
        return min(times, 3) - 1
    return 6 - bisect_right(_SHARES, times / occurrences)


def alone(trust: float = 1.0) -> ProbArray:
    """Return prior hit rates of only continuations, float64 `[LENGTHS]`, scaled by `trust`."""
    return trust * np.array(_ALONE)


def evidence_rates(*trusts: float) -> HitRates:
    """Return hit rates by (source, `length_kind`, `spread_kind`), with a prior trust per source."""
    tables = []
    for trust in trusts:
        miss = 1 - alone(trust)[:, None] * np.ones(7)
        miss[:, 1:3] *= 0.6, 0.25
        miss[:, 3:] = 1 - trust * np.array(_RIVALLED)
        tables.append(1 - miss)
    return HitRates(np.array(tables), weight=16.0)


# Source, match length, occurrences with a continuation, and (token, count), the most frequent
# first.
Evidence = tuple[int, int, int, Sequence[tuple[int, int]]]


def weigh(
    evidence: Iterable[Evidence], rates: list[list[list[float]]], reach: float
) -> list[Offer]:
    """Return candidates from matches in order of trust; later ones share the remaining probability.

    Candidates whose path probability (`reach` included) is below `FLOOR` are left out.
    """
    offers: list[Offer] = []
    offered = set()
    left = 1.0
    for source, length, occurrences, followers in evidence:
        kind = length_kind(length)
        table = rates[source][kind]
        for token, times in followers:
            if token in offered:
                continue
            spread = spread_kind(times, occurrences)
            chance = left * table[spread]
            if chance * reach < FLOOR:
                break  # later ones are rarer
            offered.add(token)
            offers.append((token, chance, (source, kind, spread)))
            left -= chance
        if left * reach < FLOOR:
            break
    return offers
