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
from functools import lru_cache
from typing import Any

import numpy as np
import numpy.typing as npt

from paceline.types import IntArray, Law, LogitArray, ProbArray

Bits = npt.NDArray[np.uint64]

_MEMBERS_BITS, _APART_BITS = 6, 8
_MEMBERS, _APART = 1 << _MEMBERS_BITS, 1 << _APART_BITS
_SPAN = _MEMBERS * _APART
"""Members of a block lie 256 apart, so that maxima of all blocks of a span come row by row."""

_MOSTLY = 5.0
"""Blocks whose bounds are so near to the greatest are opened first; mostly the winner is there."""

_FEW = 1024
"""Up to so many tokens, computing all is faster than bounding them."""

_SLACK = 1e-9
"""By which bounds are raised, so that rounding of logarithms excludes nobody."""

_STEP, _M1, _M2 = map(np.uint64, (0x9E3779B97F4A7C15, 0xBF58476D1CE4E5B9, 0x94D049BB133111EB))
_S30, _S27, _S31, _S11 = map(np.uint64, (30, 27, 31, 11))
"""Constants of the generator. Making them anew takes as long as a small array's arithmetic."""


class TokenNoise:
    """Independent exponentials, one per token id, as functions of a key and the id.

    Attributes:
        key: its 16 bytes.
    """

    def __init__(self, key: bytes) -> None:
        """Take 16 bytes that no other noise has."""
        self.key = key

    def of(self, ids: IntArray) -> ProbArray:
        """float64 `[k]`, positive: the noise of each of the token ids `[k]`."""
        blocks = ids >> (_MEMBERS_BITS + _APART_BITS) << _APART_BITS | ids & (_APART - 1)
        least, owners = _least(self._word(0), blocks)
        beyond = _logarithms(_mix(self._word(1), ids))
        beyond[ids >> _APART_BITS & (_MEMBERS - 1) == owners] = 0.0
        return least - beyond

    def least(self, blocks: int) -> tuple[ProbArray, IntArray]:
        """float64 and int64 `[blocks]`: the smallest noise in each of the first blocks, and which
        member has it."""
        return _least(self._word(0), np.arange(blocks))

    def opened(self, ids: IntArray, least: ProbArray, owners: IntArray) -> ProbArray:
        """float64 `[k, 64]`: the noise of all members of some blocks, as `of` says it.

        Args:
            ids: `[k, 64]`, the members.
            least: `[k]`, as `least` says of the blocks.
            owners: `[k]`, likewise.
        """
        beyond = _logarithms(_mix(self._word(1), ids))
        beyond[np.arange(len(ids)), owners] = 0.0
        return np.subtract(least[:, None], beyond, out=beyond)

    def _word(self, index: int) -> np.uint64:
        """One half of the key: the first is for blocks, the second for tokens."""
        return np.uint64(int.from_bytes(self.key[8 * index : 8 * index + 8], "little"))


def _least(key: np.uint64, blocks: IntArray) -> tuple[ProbArray, IntArray]:
    """The smallest noise of each block, and which member has it."""
    bits = _mix(key, blocks)
    least = _logarithms(bits)
    least /= -_MEMBERS
    # The lowest bits, which the logarithms leave out.
    return least, (bits & np.uint64(_MEMBERS - 1)).view(np.int64)


def finishers(law: Law, noise: TokenNoise, count: int = 1) -> list[int]:
    """Up to `count` tokens of a law in the order of E / p, the winner first.

    They are distributed as drawn one after another without replacement. Tokens without probability
    never finish.
    """
    if len(law.probs) == 1:
        return [law.token(0)]
    with np.errstate(divide="ignore"):
        if law.ids is None:
            return race(law.probs, block_maxima(law.probs), np.log, noise, count)
        return _listed(_best(law.ids, law.probs, np.log, noise, count)[0])


def among(ids: IntArray, log_weights: ProbArray, noise: TokenNoise) -> int:
    """The winner among tokens `[k]`, by their logarithms of weights (float64, up to a constant)."""
    scores = log_weights - np.log(noise.of(ids))
    return int(ids[scores.argmax()])


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
    if size <= _FEW:
        return _listed(_best(np.arange(size), values, log_weight, noise, count)[0])
    least, owners = noise.least(len(maxima))
    bounds = log_weight(maxima)
    bounds -= np.log(least)

    def best(blocks: IntArray) -> tuple[IntArray, ProbArray]:
        ids = _members(len(maxima))[blocks]
        scores = log_weight(values.take(ids, mode="clip"))
        scores -= np.log(noise.opened(ids, least[blocks], owners[blocks]))
        if size % _SPAN:  # the last blocks have fewer members
            scores[ids >= size] = -np.inf
        return _first(ids.ravel(), scores.ravel(), count)

    likely = bounds >= bounds.max() - _MOSTLY
    found, scores = best(likely.nonzero()[0])
    reached = scores[-1] if len(scores) == count else -np.inf
    [more] = ((bounds >= reached - _SLACK) & ~likely).nonzero()
    if len(more):
        others, theirs = best(more)
        found, scores = np.concatenate([found, others]), np.concatenate([scores, theirs])
        found, _ = _first(found, scores, count)
    return _listed(found)


def block_maxima(values: ProbArray | LogitArray) -> ProbArray | LogitArray:
    """The largest of `values` `[vocabulary]` in each block that has any; NaN if one is."""
    whole = len(values) // _SPAN * _SPAN
    maxima: ProbArray | LogitArray
    maxima = values[:whole].reshape(-1, _MEMBERS, _APART).max(axis=1).ravel()
    rest = values[whole:]
    if not len(rest):
        return maxima
    rows, tail = np.split(rest, [len(rest) // _APART * _APART])
    last = rows.reshape(-1, _APART).max(axis=0) if len(rows) else tail
    if len(rows):
        last[: len(tail)] = np.maximum(last[: len(tail)], tail)
    return np.concatenate([maxima, last])


@lru_cache(maxsize=8)
def _members(blocks: int) -> IntArray:
    """int64 `[blocks, 64]`: token ids of the members of the first blocks."""
    names = np.arange(blocks)
    first = names >> _APART_BITS << (_MEMBERS_BITS + _APART_BITS) | names & (_APART - 1)
    members: IntArray = first[:, None] + np.arange(0, _SPAN, _APART)
    return members


def _best(
    ids: IntArray,
    values: ProbArray | LogitArray,
    log_weight: Callable[[Any], ProbArray],
    noise: TokenNoise,
    count: int,
) -> tuple[IntArray, ProbArray]:
    """The first `count` finishers among `ids`, and their scores."""
    return _first(ids, log_weight(values) - np.log(noise.of(ids)), count)


def _first(ids: IntArray, scores: ProbArray, count: int) -> tuple[IntArray, ProbArray]:
    """The ids of the `count` largest scores, and these; what never finishes is left out."""
    if count == 1:
        best = int(scores.argmax())
        some = slice(best, best + (scores[best] > -np.inf))
        return ids[some], scores[some]
    order = np.argsort(-scores)[:count]
    order = order[scores[order] > -np.inf]
    return ids[order], scores[order]


def _listed(ids: IntArray) -> list[int]:
    tokens: list[int] = ids.tolist()
    return tokens


def _mix(key: np.uint64, names: IntArray) -> Bits:
    """64 random bits per name: SplitMix64 (Steele, Lea and Flood 2014), begun at the key."""
    bits: Bits = key + names.astype(np.uint64) * _STEP
    bits ^= bits >> _S30
    bits *= _M1
    bits ^= bits >> _S27
    bits *= _M2
    bits ^= bits >> _S31
    return bits


def _logarithms(bits: Bits) -> ProbArray:
    """float64, of numbers in (0, 1): multiples of 2^-53, and 2^-54 in place of 0, so that they are
    finite. Without their signs they are exponentials."""
    values: ProbArray = (bits >> _S11).astype(np.float64)
    values *= 2.0**-53
    np.maximum(values, 2.0**-54, out=values)
    return np.log(values, out=values)
