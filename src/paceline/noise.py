"""Noise that belongs to a position and a token id, computed for the few tokens that may win.

Every token id has an exponential E of its own at a position. The token that minimises E / p is
distributed as p (with Gumbel noise g = -log E it is argmax(log p + g)), so whoever knows seed,
position and logits knows the token, whatever was drafted.

Nobody needs all of it. Ids fall into blocks of 64. Of a block, the smallest E is drawn first: it is
an exponential of rate 64, and belongs to each of the 64 alike. What the others have beyond it is
exponential again, since exponentials forget. So the smallest E and the largest p of a block bound
what its tokens can reach, and only blocks whose bound reaches the best token found so far are
opened: some twenty of 768 for a language model at temperature 1. (Bounding the noise of a group by
its maximum, as in A* sampling: Maddison, Tarlow and Minka 2014, arXiv:1411.0030.)
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt

from paceline.types import IntArray, Law, LogitArray, ProbArray

Bits = npt.NDArray[np.uint64]

_MEMBERS_BITS, _APART_BITS = 6, 8
_MEMBERS, _APART = 1 << _MEMBERS_BITS, 1 << _APART_BITS
_SPAN = _MEMBERS * _APART
"""Members of a block lie 256 apart, so that maxima of all blocks of a span come row by row."""

_FIRST = 16
"""Blocks that are opened to have something to compare bounds with; mostly all that is needed."""

_FEW = 1024
"""Up to so many tokens, computing all is faster than bounding them."""

_SLACK = 1e-9
"""By which bounds are raised, so that rounding of logarithms excludes nobody."""

_STEP = np.uint64(0x9E3779B97F4A7C15)


class TokenNoise:
    """Independent exponentials, one per token id, as functions of a key and the id."""

    def __init__(self, key: bytes) -> None:
        """Take 16 bytes that no other noise has."""
        self._blocks = np.uint64(int.from_bytes(key[:8], "little"))
        self._tokens = np.uint64(int.from_bytes(key[8:], "little"))

    def of(self, ids: IntArray) -> ProbArray:
        """float64 `[k]`, positive: the noise of each of the token ids `[k]`."""
        blocks = ids >> (_MEMBERS_BITS + _APART_BITS) << _APART_BITS | ids & (_APART - 1)
        least, owner = self._least(blocks)
        beyond: ProbArray = -np.log(_unit(_mix(self._tokens, ids)))
        beyond[ids >> _APART_BITS & (_MEMBERS - 1) == owner] = 0.0
        return least + beyond

    def least(self, blocks: int) -> ProbArray:
        """float64 `[blocks]`: the smallest noise in each of the first blocks."""
        return self._least(np.arange(blocks))[0]

    def _least(self, blocks: IntArray) -> tuple[ProbArray, IntArray]:
        """The smallest noise of each block, and which member has it."""
        bits = _mix(self._blocks, blocks)
        least: ProbArray = -np.log(_unit(bits)) / _MEMBERS
        # The lowest bits, which `_unit` leaves out.
        return least, (bits & np.uint64(_MEMBERS - 1)).astype(np.int64)


def finishers(law: Law, noise: TokenNoise, count: int = 1) -> list[int]:
    """Up to `count` tokens of a law in the order of E / p, the winner first.

    They are distributed as drawn one after another without replacement. Tokens without probability
    never finish.
    """
    if law.ids is None:
        return race(law.probs, block_maxima(law.probs), np.log, noise, count)
    if len(law.ids) == 1:
        return [law.token(0)]
    with np.errstate(divide="ignore"):
        return _listed(_best(law.ids, law.probs, np.log, noise, count)[0])


def race(
    values: ProbArray | LogitArray,
    maxima: ProbArray | LogitArray,
    log_weight: Callable[[Any], ProbArray],
    noise: TokenNoise,
    count: int = 1,
) -> list[int]:
    """Up to `count` token ids in the order of log weight - log E, the largest first.

    Args:
        values: `[vocabulary]`, what weights follow from.
        maxima: `block_maxima` of them.
        log_weight: from values to float64 logarithms of weights, up to a constant; increasing. A
            weight of zero, logarithm -inf, never finishes.
        noise: of the position.
        count: finishers wanted.
    """
    size = len(values)
    with np.errstate(divide="ignore", over="ignore"):
        if size <= _FEW:
            return _listed(_best(np.arange(size), values, log_weight, noise, count)[0])
        bounds = log_weight(maxima) - np.log(noise.least(len(maxima)))
        first = np.argpartition(bounds, -_FIRST)[-_FIRST:]
        ids = _members(first, size)
        found, scores = _best(ids, values[ids], log_weight, noise, count)
        reached = scores[-1] if len(scores) == count else -np.inf
        bounds[first] = np.nan  # done with
        more = np.flatnonzero(bounds >= reached - _SLACK)
        if len(more):
            ids = np.concatenate([found, _members(more, size)])
            found, _ = _best(ids, values[ids], log_weight, noise, count)
        return _listed(found)


def block_maxima(values: ProbArray | LogitArray) -> ProbArray | LogitArray:
    """The largest of `values` `[vocabulary]` in each block that has any; NaN if one is."""
    spans, rest = np.split(values, [len(values) // _SPAN * _SPAN])
    maxima: ProbArray | LogitArray
    maxima = spans.reshape(-1, _MEMBERS, _APART).max(axis=1).ravel()
    if not len(rest):
        return maxima
    rows, tail = np.split(rest, [len(rest) // _APART * _APART])
    last = rows.reshape(-1, _APART).max(axis=0) if len(rows) else tail
    if len(rows):
        last[: len(tail)] = np.maximum(last[: len(tail)], tail)
    return np.concatenate([maxima, last])


def _members(blocks: IntArray, size: int) -> IntArray:
    """Token ids below `size` of some blocks."""
    first = blocks >> _APART_BITS << (_MEMBERS_BITS + _APART_BITS) | blocks & (_APART - 1)
    ids = (first[:, None] + np.arange(0, _SPAN, _APART)).ravel()
    return ids[ids < size]


def _best(
    ids: IntArray,
    values: ProbArray | LogitArray,
    log_weight: Callable[[Any], ProbArray],
    noise: TokenNoise,
    count: int,
) -> tuple[IntArray, ProbArray]:
    """The first `count` finishers among `ids`, and their scores."""
    scores = log_weight(values) - np.log(noise.of(ids))
    order = np.argsort(-scores)[:count] if count > 1 else np.array([scores.argmax()])
    order = order[scores[order] > -np.inf]
    return ids[order], scores[order]


def _listed(ids: IntArray) -> list[int]:
    tokens: list[int] = ids.tolist()
    return tokens


def _mix(key: np.uint64, names: IntArray) -> Bits:
    """64 random bits per name: SplitMix64 (Steele, Lea and Flood 2014), begun at the key."""
    bits: Bits = names.astype(np.uint64) * _STEP + key
    bits ^= bits >> np.uint64(30)
    bits *= np.uint64(0xBF58476D1CE4E5B9)
    bits ^= bits >> np.uint64(27)
    bits *= np.uint64(0x94D049BB133111EB)
    return bits ^ bits >> np.uint64(31)


def _unit(bits: Bits) -> ProbArray:
    """float64 in (0, 1): multiples of 2^-53, and 2^-54 in place of 0, so that logs are finite."""
    values: ProbArray = (bits >> np.uint64(11)).astype(np.float64)
    values *= 2.0**-53
    return np.maximum(values, 2.0**-54, out=values)
