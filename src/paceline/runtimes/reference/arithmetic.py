"""The canonical arithmetic of `native/kernels`, in NumPy and float32.

Sums have one order, multiply-adds are rounded once where `fma` stands, and nothing else decides.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from paceline.core.types import IntArray, LogitArray, ProbArray
from paceline.native.blocks import GROUP
from paceline.native.packed import LANES
from paceline.runtimes.reference.formats import Matrix

CHUNK = 128
"""Keys that are summed together, by place in the path."""

_SHIFT = 12582912.0  # 1.5 * 2^23: adding it rounds a float32 to an integer


def fma(a: Any, b: Any, c: Any) -> LogitArray:
    """Return `a * b + c` of float32 numbers, rounded once."""
    a, b, c = (np.asarray(each, np.float32).astype(np.float64) for each in (a, b, c))
    product = a * b  # exact
    total = np.asarray(product + c)
    bits = total.view(np.int64)
    # Rounded again, a number that may lie half-way between two of float32 must know on which side
    # of it the exact sum is: it goes to its neighbour there.
    close = bits & 0xFFFFFFF == 0
    if close.any():
        p, c, t = (np.broadcast_to(each, total.shape)[close] for each in (product, c, total))
        back = t - p
        error = (p - (t - back)) + (c - back)
        away = (error > 0).astype(np.int64) - (error < 0)
        bits[close] += np.where(t < 0, -away, away)
    return total.astype(np.float32)


def folded(lanes: LogitArray) -> LogitArray:
    """Return the sum over the last axis: halves are put together until one is left."""
    while (half := lanes.shape[-1] // 2) > 0:
        lanes = lanes[..., :half] + lanes[..., half:]
    return lanes[..., 0]


def in_order(x: LogitArray) -> LogitArray:
    """Return the sum over the last axis, number by number."""
    total: LogitArray = np.add.accumulate(x, axis=-1)[..., -1]
    return total


def exponential(x: LogitArray) -> LogitArray:
    """Return e^x; x below -87 or above 88 is moved there."""
    x = np.clip(x, -87, 88)
    n = fma(x, 1.44269504, _SHIFT) - _SHIFT
    r = fma(n, 2.12194440e-4, fma(n, -0.693359375, x))
    p = fma(r, 1.9875691e-4, 1.3981999e-3)
    for coefficient in (8.3334519e-3, 4.1665796e-2, 1.6666665e-1, 5.0000001e-1):
        p = fma(p, r, coefficient)
    p = fma(p, r * r, r + 1)
    return p * np.ldexp(np.float32(1), n.astype(np.int32))


def active(x: LogitArray, activation: str) -> LogitArray:
    """Return SiLU, GELU (by its tanh) or the square of the ReLU of numbers."""
    if activation == "relu2":
        return np.square(np.maximum(x, np.float32(0)))
    if activation == "silu":
        return x / (exponential(-x) + 1)
    inner = fma(x * x * x, 0.044715, x)
    return x / (exponential(inner * np.float32(-1.5957691216)) + 1)


# Of the share above a number in a normal distribution, the highest power first.
_SHARE = (0.5307027145, -0.7265760135, 0.7107068705, -0.142248368, 0.127414796)


def exact_gelu(x: LogitArray) -> LogitArray:
    """Return GELU by the error function, within 3e-7."""
    size, one = np.abs(x), np.float32(1)
    t = one / fma(size, 0.23164189, one)
    share = np.full_like(t, _SHARE[0])
    for coefficient in _SHARE[1:]:
        share = fma(share, t, coefficient)
    tail = size * (share * t) * exponential(x * x * np.float32(-0.5))
    out: LogitArray = np.where(x > 0, x, np.float32(0)) - tail
    return out


def gated(gate: LogitArray, up: LogitArray, activation: str) -> LogitArray:
    """Return what a gate lets through."""
    if activation != "clamped":
        return active(gate, activation) * up
    gate, up = np.minimum(gate, np.float32(7)), np.clip(up, np.float32(-7), np.float32(7))
    return gate / (exponential(gate * np.float32(-1.702)) + 1) * (up + 1)


def sigmoid(x: LogitArray) -> LogitArray:
    """Return 1 / (1 + e^-x)."""
    return np.float32(1) / (exponential(-x) + np.float32(1))


# Of log(1 + x) / x on [0, 1], the highest power first.
_LOG = (-0.0031760571, 0.019542528, -0.056373615, 0.10543624, -0.15269667)
_LOG_REST = (0.19663274, -0.24951616, 0.3332971, -0.49999893, 1.0)


def softplus(x: LogitArray) -> LogitArray:
    """Return log(1 + e^x)."""
    y = exponential(-np.abs(x))
    total = np.full_like(y, _LOG[0])
    for coefficient in (*_LOG[1:], *_LOG_REST):
        total = fma(total, y, coefficient)
    out: LogitArray = fma(y, total, np.maximum(x, 0))
    return out


def unit(x: LogitArray) -> LogitArray:
    """Return vectors over the last axis at length 1."""
    square = np.zeros((*x.shape[:-1], LANES), np.float32)
    for begin in range(0, x.shape[-1], LANES):
        lanes = x[..., begin : begin + LANES]
        square = fma(lanes, lanes, square)
    out: LogitArray = x * (1 / np.sqrt(folded(square)[..., None] + np.float32(1e-6)))
    return out


_CHAINS = 4


def _by_key(state: LogitArray, keys: LogitArray) -> LogitArray:
    # Sum over keys in four chains, every fourth key in one: [heads, keys, values] by [heads, keys].
    chains = np.zeros((len(state), _CHAINS, state.shape[2]), np.float32)
    for begin in range(0, state.shape[1], _CHAINS):
        own = slice(begin, begin + _CHAINS)
        chains = fma(keys[:, own, None], state[:, own], chains)
    out: LogitArray = (chains[:, 0] + chains[:, 1]) + (chains[:, 2] + chains[:, 3])
    return out


def delta_step(
    state: LogitArray,
    query: LogitArray,
    key: LogitArray,
    value: LogitArray,
    strength: LogitArray,
    decay: LogitArray,
) -> tuple[LogitArray, LogitArray]:
    """Return a state `[heads, keys, values]` changed by a row, and what the row reads of it.

    `query` and `key` are `[heads, keys]`, `value` `[heads, values]`, the others `[heads]`.
    """
    known = _by_key(state * decay[:, None, None], key)
    return scan_step(state, query, key, value - known, strength, decay)


def scan_step(
    state: LogitArray,
    query: LogitArray,
    key: LogitArray,
    value: LogitArray,
    step: LogitArray,
    decay: LogitArray,
) -> tuple[LogitArray, LogitArray]:
    """Return likewise a state to which a row's values are added as they are, times its step."""
    change = value * step[:, None]
    state = fma(key[:, :, None], change[:, None], state * decay[:, None, None])
    return state, _by_key(state, query)


def layer_normed(x: LogitArray, weights: LogitArray, bias: LogitArray, eps: float) -> LogitArray:
    """Return the layer norm over the last axis: the RMS norm of numbers less their mean."""
    lanes = in_order(x.reshape(*x.shape[:-1], -1, LANES).swapaxes(-1, -2))
    x = x - folded(lanes)[..., None] / np.float32(x.shape[-1])
    return normed(x, weights, eps) + bias


def normed(x: LogitArray, weights: LogitArray, eps: float) -> LogitArray:
    """Return the RMS norm over the last axis."""
    square = np.zeros((*x.shape[:-1], LANES), np.float32)
    for begin in range(0, x.shape[-1], LANES):
        lanes = x[..., begin : begin + LANES]
        square = fma(lanes, lanes, square)
    factor = 1 / np.sqrt(folded(square)[..., None] / x.shape[-1] + np.float32(eps))
    out: LogitArray = x * factor * weights
    return out


def product(x: LogitArray, matrix: Matrix) -> LogitArray:
    """Return `[rows, outputs]`: input by input, or group by group of rounded inputs."""
    out = np.zeros((len(x), len(matrix.numbers)), np.float32)
    if matrix.scales is None:
        for column, weights in zip(x.T, matrix.numbers.T, strict=True):
            out = fma(weights, column[:, None], out)
        return out
    groups = x.reshape(len(x), x.shape[1] // GROUP, GROUP)
    most = np.abs(groups).max(-1)
    factor = np.divide(127, most, out=np.zeros_like(most), where=most > 0)
    rounded = (groups * factor[..., None] + _SHIFT) - _SHIFT
    scale = most / 127
    total = scale * rounded.sum(-1)
    for cell in range(groups.shape[1]):
        # Integers below 2^24: exact in every order.
        sums = rounded[:, cell] @ matrix.numbers[:, cell].T.astype(np.float32)
        out = fma(sums * scale[:, cell, None], matrix.scales[:, cell], out)
        if matrix.lows is not None:
            assert matrix.minima is not None
            least = rounded[:, cell] @ matrix.lows[:, cell].T.astype(np.float32)
            out = fma(matrix.minima[:, cell], -(least * scale[:, cell, None]), out)
        elif matrix.minima is not None:
            out = fma(matrix.minima[:, cell], -total[:, cell, None], out)
    return out


def turns(angles: ProbArray, factor: float) -> tuple[LogitArray, LogitArray]:
    """Return `factor` times the cosines and sines of angles below 1.6e6."""
    quarters = np.rint(angles * 0.63661977236758134308)
    x = angles - quarters * float.fromhex("0x1.921fb544p0")
    x = x - quarters * float.fromhex("0x1.0b4611a6p-34")
    x = x - quarters * float.fromhex("0x1.3198a2e037073p-69")
    square, sine, cosine = x * x, np.zeros_like(x), np.zeros_like(x)
    for k in range(8, 0, -1):
        sine = (sine + 1) * -square / (2 * k * (2 * k + 1))
        cosine = (cosine + 1) * -square / ((2 * k - 1) * (2 * k))
    sine, cosine = x * sine + x, cosine + 1
    quarter = quarters.astype(np.int64) & 3
    odd = quarter % 2 == 1
    first, second = np.where(odd, sine, cosine), np.where(odd, cosine, sine)
    first = np.where((quarter == 1) | (quarter == 2), -first, first)
    second = np.where(quarter >= 2, -second, second)
    return (factor * first).astype(np.float32), (factor * second).astype(np.float32)


class ChunkSums(NamedTuple):
    """What a chunk of keys gives each query.

    Attributes:
        highest: `[rows, heads]`, of its scores; minus infinity where a row sees none.
        weight: likewise, the sum of its weights relative to that.
        values: `[rows, heads, width]`, the weighted sum of its values.
    """

    highest: LogitArray
    weight: LogitArray
    values: LogitArray


def relative(scores: LogitArray, highest: LogitArray) -> LogitArray:
    """Return e^(scores - highest), 0 for keys that are not seen."""
    some = np.where(np.isinf(highest), np.float32(0), highest)
    return np.where(np.isinf(scores), np.float32(0), exponential(scores - some))


def attention_parts(
    queries: LogitArray, keys: LogitArray, values: LogitArray, paths: IntArray
) -> list[ChunkSums]:
    """Return what each chunk gives, in order; arguments are as of `attention`."""
    scores = np.zeros((*queries.shape[:2], len(keys)), np.float32)
    for d in range(queries.shape[2]):
        scores = fma(queries[:, :, d, None], keys[:, :, d].T, scores)
    scores = np.take_along_axis(scores, np.maximum(paths, 0)[:, None], axis=2)
    scores[np.broadcast_to(paths[:, None] < 0, scores.shape)] = -np.inf
    parts = []
    for begin in range(0, paths.shape[1], CHUNK):
        own = scores[..., begin : begin + CHUNK]
        highest = own.max(-1)
        shares = relative(own, highest[..., None])
        lanes = shares.reshape(*shares.shape[:2], -1, LANES).swapaxes(2, 3)
        mean = np.zeros_like(queries)
        for place in range(CHUNK):
            if (paths[:, begin + place] >= 0).any():
                value = values[paths[:, begin + place]]
                mean = fma(shares[..., place, None], value, mean)
        parts.append(ChunkSums(highest, folded(in_order(lanes)), mean))
    return parts


def attention(
    queries: LogitArray,
    keys: LogitArray,
    values: LogitArray,
    paths: IntArray,
    sinks: LogitArray | None = None,
) -> LogitArray:
    """Return `[rows, heads, width]`, the mean of values that each row sees.

    Args:
        queries: `[rows, heads, width]`, rotated and scaled.
        keys: `[places, heads, width]`.
        values: likewise.
        paths: `[rows, longest]`, the places that a row sees in order, -1 for none; `longest` is a
            multiple of `CHUNK`.
        sinks: `[heads]` scores of no key, the first of all; None for none.
    """
    parts = attention_parts(queries, keys, values, paths)
    highest = parts[0].highest
    sink = np.full_like(highest, -np.inf) if sinks is None else np.zeros_like(highest) + sinks
    top = np.max([sink, *(part.highest for part in parts)], axis=0)
    total = relative(sink, top)
    factors = [relative(part.highest, top) for part in parts]
    for part, factor in zip(parts, factors, strict=True):
        total = fma(part.weight, factor, total)
    mean = parts[0].values * (factors[0] / total)[..., None]
    for part, factor in zip(parts[1:], factors[1:], strict=True):
        mean = fma(part.values, (factor / total)[..., None], mean)
    return mean


def among(queries: LogitArray, keys: LogitArray, values: LogitArray) -> LogitArray:
    """Return `[slots, heads, width]`, the mean of values of slots that all see one another.

    Arguments are `[slots, heads, width]`, without positions.
    """
    slots, heads, width = queries.shape
    lanes = np.zeros((slots, slots, heads, LANES), np.float32)
    for begin in range(0, width, LANES):
        own = queries[:, None, :, begin : begin + LANES]
        lanes = fma(own, keys[None, :, :, begin : begin + LANES], lanes)
    scores = folded(lanes) * (np.float32(1) / np.sqrt(np.float32(width)))
    weights = exponential(scores - scores.max(1, keepdims=True))
    total = in_order(weights.swapaxes(1, 2))
    mean = np.zeros_like(queries)
    for slot in range(slots):
        mean = fma(values[slot], weights[:, slot, :, None], mean)
    return mean / total[..., None]
