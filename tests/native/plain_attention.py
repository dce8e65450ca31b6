"""Attention along paths in plain NumPy, the reference of `native/kernels/attention.cpp`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[np.float64]


@dataclass
class Sizes:
    """Of one layer."""

    heads: int = 6
    kv_heads: int = 2
    width: int = 32
    base: float = 10_000.0
    eps: float = 1e-5
    norms: tuple[Array, Array] | None = None
    window: int = 0
    turned: int | None = None
    """Numbers of a head that are rotated; None for all."""
    scale: float | None = None

    @property
    def frequencies(self) -> Array:
        rotated = self.width if self.turned is None else self.turned
        return self.base ** -(np.arange(rotated // 2) * 2 / max(rotated, 1))


@dataclass
class PlainCache:
    """One sequence: rotated keys and values by stored place."""

    keys: dict[int, Array] = field(default_factory=dict)
    values: dict[int, Array] = field(default_factory=dict)


def normed(x: Array, norm: Array, eps: float) -> Array:
    return x / np.sqrt((x**2).mean(-1, keepdims=True) + eps) * norm


def rotated(x: Array, position: int, sizes: Sizes) -> Array:
    """`[heads, width]` at a position."""
    half = len(sizes.frequencies)
    low, high, rest = x[..., :half], x[..., half : 2 * half], x[..., 2 * half :]
    cosine, sine = np.cos(position * sizes.frequencies), np.sin(position * sizes.frequencies)
    return np.concatenate([low * cosine - high * sine, high * cosine + low * sine, rest], axis=-1)


def enter(sizes: Sizes, cache: PlainCache, row: Array, position: int, stored: int) -> Array:
    """Store a row's keys and values and return its queries, `[heads, width]`."""
    parts = row.reshape(-1, sizes.width).astype(np.float64)
    queries, keys = parts[: sizes.heads], parts[sizes.heads : sizes.heads + sizes.kv_heads]
    if sizes.norms is not None:
        queries = normed(queries, sizes.norms[0], sizes.eps)
        keys = normed(keys, sizes.norms[1], sizes.eps)
    cache.keys[stored] = rotated(keys, position, sizes)
    cache.values[stored] = parts[sizes.heads + sizes.kv_heads :]
    return rotated(queries, position, sizes)


def attend(sizes: Sizes, cache: PlainCache, queries: Array, path: Sequence[int]) -> Array:
    """What a row sees along its path of stored places: `[heads * width]`."""
    path = path[-sizes.window :] if sizes.window else path
    keys = np.stack([cache.keys[place] for place in path])
    values = np.stack([cache.values[place] for place in path])
    out = []
    for head, query in enumerate(queries):
        kept = head // (sizes.heads // sizes.kv_heads)
        scores = keys[:, kept] @ query * (sizes.width**-0.5 if sizes.scale is None else sizes.scale)
        weights = np.exp(scores - scores.max())
        out.append(weights @ values[:, kept] / weights.sum())
    return np.concatenate(out)
