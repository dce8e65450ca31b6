"""How good a guess is, given what was seen: a continuation that followed c of n occurrences.

Raw counts are poor estimates. "Once, and always so" after two tokens of context comes true half of
the time, after twenty tokens nearly always. So guesses are told apart by the length of the context
and by how one-sided the counts are, and each kind has a hit rate that is learned from what was
committed.
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

LENGTHS = len(_EDGES) + 1
"""Number of kinds of context by length."""

# Hit rates of "once, always so" by length of context, and of continuations that had rivals, by
# their share of the occurrences. Measured on greedy texts of the default model; start values only.
_ALONE = (0.30, 0.56, 0.65, 0.70, 0.75, 0.79, 0.84, 0.91, 0.97)
_RIVALLED = (0.35, 0.17, 0.11, 0.05)
_SHARES = (0.1, 0.25, 0.5)

TRUST = 0.6
"""How good another source is beside the sequence's own text, before anything was observed."""


def length_kind(length: int) -> int:
    """Kind of a context by its length in tokens, 0 to `LENGTHS - 1`."""
    return _BUCKETS[length] if length <= _EDGES[-1] else LENGTHS - 1


def length_kinds(length: int, count: int) -> list[int]:
    """Kinds of contexts of that length and of the next ones, so many in all."""
    kinds = list(_BUCKETS[length : length + count])
    return kinds + [LENGTHS - 1] * (count - len(kinds))


def spread_kind(times: int, occurrences: int) -> int:
    """Kind of a continuation that followed `times` of `occurrences` occurrences of its context.

    0 to 2: nothing else ever followed, in one, two, or more occurrences. 3 to 6: it had rivals,
    and followed at least half, a quarter, a tenth, or less of the occurrences.
    """
    if times == occurrences:
        return min(times, 3) - 1
    return 6 - bisect_right(_SHARES, times / occurrences)


def alone(trust: float = 1.0) -> ProbArray:
    """float64 `[LENGTHS]`, start values of hit rates of lone continuations.

    Args:
        trust: how good the source is beside the sequence's own text, in (0, 1]; see `TRUST`.
    """
    return trust * np.array(_ALONE)


def evidence_rates(*trusts: float) -> HitRates:
    """Hit rates by (source, `length_kind`, `spread_kind`), with start values per source.

    Args:
        trusts: per source, see `alone`.
    """
    tables = []
    for trust in trusts:
        miss = 1 - alone(trust)[:, None] * np.ones(7)
        miss[:, 1:3] *= 0.6, 0.25
        miss[:, 3:] = 1 - trust * np.array(_RIVALLED)
        tables.append(1 - miss)
    return HitRates(np.array(tables), weight=16.0)


Evidence = tuple[int, int, int, Sequence[tuple[int, int]]]
"""What followed a context in a source: index of the source among the hit rates, length of the
context, how many of its occurrences something follows, and the tokens that followed with how often
each did, most frequent first."""


def weigh(
    evidence: Iterable[Evidence], rates: list[list[list[float]]], reach: float
) -> list[Offer]:
    """What may come next, by several contexts.

    A token's chance is its hit rate, given that no token before it comes; so contexts that come
    later, which should be the shorter ones, share what those before them leave.

    Args:
        evidence: in order of trust.
        rates: those of `evidence_rates`, as lists.
        reach: probability of getting to where the tokens stand. Tokens that are less likely than
            `FLOOR` with it are left out.
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
                break  # those behind it are rarer
            offered.add(token)
            offers.append((token, chance, (source, kind, spread)))
            left -= chance
        if left * reach < FLOOR:
            break
    return offers
