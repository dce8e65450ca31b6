"""Gumbel noise keyed by seed, position and token id, for Gumbel-max sampling (arXiv:2408.07978).

Each id has an exponential E. The argmin of E / p is distributed as p; the Gumbel noise is -log E.
Lazy per block of 64 ids, as in A* sampling (Maddison et al. 2014, arXiv:1411.0030).
"""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache
from typing import Any

import numpy as np
import numpy.typing as npt

from paceline.core.types import Distribution, IntArray, LogitArray, ProbArray

Bits = npt.NDArray[np.uint64]

_MEMBERS_BITS, _APART_BITS = 6, 8
_MEMBERS, _APART = 1 << _MEMBERS_BITS, 1 << _APART_BITS
# Ids of a block are 256 apart: block maxima of a span are then row-wise maxima.
_SPAN = _MEMBERS * _APART

# Margin (in log score) below the greatest bound of the blocks evaluated first.
_MOSTLY = 5.0

# Vocabulary size up to which evaluating all is faster than bounding.
_FEW = 1024

# Margin on bounds against rounding of logarithms.
_SLACK = 1e-9

# SplitMix64 constants, made once: conversion costs as much as a small array's arithmetic.
_STEP, _M1, _M2 = map(np.uint64, (0x9E3779B97F4A7C15, 0xBF58476D1CE4E5B9, 0x94D049BB133111EB))
_S30, _S27, _S31, _S11 = map(np.uint64, (30, 27, 31, 11))


class GumbelNoise:
    """Independent exponentials, one per token id, as a function of a 16-byte key and the id."""

    def __init__(self, key: bytes) -> None:
        self.key = key

    def of(self, ids: IntArray) -> ProbArray:
        """Return float64 `[k]`, positive: E of each of the ids `[k]`."""
        blocks = ids >> (_MEMBERS_BITS + _APART_BITS) << _APART_BITS | ids & (_APART - 1)
        least, owners = _least(self._word(0), blocks)
        # Exponentials are memoryless: the excess over the block's minimum is exponential again.
        beyond = _logarithms(_mix(self._word(1), ids))
        beyond[ids >> _APART_BITS & (_MEMBERS - 1) == owners] = 0.0
        return least - beyond

    def least(self, blocks: int) -> tuple[ProbArray, IntArray]:
        """Return the minimum E of each of the first blocks and its member, `[blocks]` each."""
        return _least(self._word(0), np.arange(blocks))

    def opened(self, ids: IntArray, least: ProbArray, owners: IntArray) -> ProbArray:
        """Return float64 `[k, 64]`: E of all members `ids` of some blocks, given their `least`."""
        beyond = _logarithms(_mix(self._word(1), ids))
        beyond[np.arange(len(ids)), owners] = 0.0
        return np.subtract(least[:, None], beyond, out=beyond)

    def _word(self, index: int) -> np.uint64:
        return np.uint64(int.from_bytes(self.key[8 * index : 8 * index + 8], "little"))


def _least(key: np.uint64, blocks: IntArray) -> tuple[ProbArray, IntArray]:
    bits = _mix(key, blocks)
    least = _logarithms(bits)
    least /= -_MEMBERS
    # Owners come from the lowest bits, which the logarithms do not use.
    return least, (bits & np.uint64(_MEMBERS - 1)).view(np.int64)


def gumbel_top_k(distribution: Distribution, noise: GumbelNoise, count: int = 1) -> list[int]:
    """Return up to `count` tokens in ascending E / p: sampled without replacement."""
    if len(distribution.probs) == 1:
        return [distribution.token(0)]
    with np.errstate(divide="ignore"):
        if distribution.ids is None:
            return gumbel_race(
                distribution.probs, block_maxima(distribution.probs), np.log, noise, count
            )
        return _listed(_best(distribution.ids, distribution.probs, np.log, noise, count)[0])


def gumbel_argmax(ids: IntArray, log_weights: ProbArray, noise: GumbelNoise) -> int:
    """Return the Gumbel-max token among `ids` `[k]`; log weights float64, up to a constant."""
    scores = log_weights - np.log(noise.of(ids))
    return int(ids[scores.argmax()])


def gumbel_race(
    values: ProbArray | LogitArray,
    maxima: ProbArray | LogitArray,
    log_weight: Callable[[Any], ProbArray],
    noise: GumbelNoise,
    count: int = 1,
) -> list[int]:
    """Return up to `count` token ids in descending log weight - log E (Gumbel-top-k).

    `log_weight` is an increasing map from `values` `[vocabulary]` to float64 log weights, up to a
    constant; -inf excludes a token. `maxima` is `block_maxima` of `values`.
    """
    size = len(values)
    if size <= _FEW:
        return _listed(_best(np.arange(size), values, log_weight, noise, count)[0])
    # Minimum E and maximum weight bound the scores of a block. Only blocks whose bound reaches the
    # best score found are evaluated.
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
    """Return the maximum of `values` `[vocabulary]` in each block; NaN if one is."""
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
    # int64 `[blocks, 64]`: token ids by block.
    names = np.arange(blocks)
    first = names >> _APART_BITS << (_MEMBERS_BITS + _APART_BITS) | names & (_APART - 1)
    members: IntArray = first[:, None] + np.arange(0, _SPAN, _APART)
    return members


def _best(
    ids: IntArray,
    values: ProbArray | LogitArray,
    log_weight: Callable[[Any], ProbArray],
    noise: GumbelNoise,
    count: int,
) -> tuple[IntArray, ProbArray]:
    return _first(ids, log_weight(values) - np.log(noise.of(ids)), count)


def _first(ids: IntArray, scores: ProbArray, count: int) -> tuple[IntArray, ProbArray]:
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
    """Return 64 random bits per name: SplitMix64 (Steele et al. 2014), seeded by the key."""
    bits: Bits = key + names.astype(np.uint64) * _STEP
    bits ^= bits >> _S30
    bits *= _M1
    bits ^= bits >> _S27
    bits *= _M2
    bits ^= bits >> _S31
    return bits


def _logarithms(bits: Bits) -> ProbArray:
    """Return logs of uniforms in (0, 1): multiples of 2^-53, with 2^-54 in place of 0."""
    values: ProbArray = (bits >> _S11).astype(np.float64)
    values *= 2.0**-53
    np.maximum(values, 2.0**-54, out=values)
    return np.log(values, out=values)
