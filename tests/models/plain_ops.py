"""A model in NumPy, row by row in float64: what every runtime's rows are held against."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

from paceline.core.target import Block, Layer
from paceline.models import families
from paceline.models.config import ModelConfig
from paceline.models.ops import Activation, Experts, Heads, Rotary
from paceline.models.weights import Weights
from paceline.runtimes.passes import block_mask

Array: TypeAlias = npt.NDArray[np.floating[Any]]


@dataclass(slots=True)
class PlainCache:
    """Keys and values `[length, kv_heads, width]` by layer; `new` are those of the last forward."""

    kept: dict[int, tuple[Array, Array]] = field(default_factory=dict)
    new: dict[int, tuple[Array, Array]] = field(default_factory=dict)
    length: int = 0

    def keep(self, rows: Sequence[int]) -> None:
        for layer, pair in self.new.items():
            old = self.kept.get(layer, tuple(each[:0] for each in pair))
            keys, values = (
                np.concatenate([a, b[list(rows)]]) for a, b in zip(old, pair, strict=True)
            )
            self.kept[layer] = keys, values
        self.new, self.length = {}, self.length + len(rows)


def forward(
    config: ModelConfig, weights: Weights, block: Block, layers: Sequence[Layer] | None = None
) -> tuple[Array, Array]:
    """Logits, and rows before the final norm."""
    ops, states = PlainOps(config, weights, block), []
    x = None if block.inputs is None else block.inputs.astype(np.float64)
    hidden = families.forward(ops, config, layers=layers, x=x, states=states)
    return families.head(ops, config, hidden), states[0]


class PlainOps:
    """Implements `models.ops.Ops`."""

    def __init__(self, config: ModelConfig, weights: Weights, block: Block) -> None:
        self._config, self._weights, self._block = config, weights, block

    def embed(self, scale: float = 1.0) -> Array:
        return self._get("embed")[self._block.tokens] * scale

    def norm(self, x: Array, name: str, *, plus: Array | None = None) -> Array:
        mean = (x * x).mean(-1, keepdims=True)
        out = x / np.sqrt(mean + self._config.norm_eps) * self._get(name)
        return out if plus is None else plus + out

    def linear(
        self,
        x: Array,
        names: Sequence[str],
        *,
        norm: str | None = None,
        scale: float = 1.0,
        plus: Array | None = None,
    ) -> Array:
        x = x if norm is None else self.norm(x, norm)
        parts = []
        for name in names:
            part = x @ self._get(name).T
            parts.append(part + self._get(b) if (b := f"{name}.bias") in self._weights else part)
        out = np.concatenate(parts, axis=-1) * scale
        return out if plus is None else plus + out

    def gated(
        self, x: Array, gate: str, up: str, *, activation: Activation, norm: str | None = None
    ) -> Array:
        x = x if norm is None else self.norm(x, norm)
        return active(self.linear(x, [gate]), activation) * self.linear(x, [up])

    def route(self, x: Array, name: str, experts: Experts) -> Array:
        scores, out = self.linear(x, [name]), np.zeros((len(x), experts.count))
        if not experts.used:
            return self.norm(np.maximum(scores, 0), f"{name}_norm")
        for own, to in zip(scores, out, strict=True):
            shares = np.exp(own - own.max()) / np.exp(own - own.max()).sum()
            used = sorted(range(len(own)), key=lambda e: -shares[e])[: experts.used]
            to[used] = shares[used] / (shares[used].sum() if experts.sum_to_one else 1)
        return out

    def mix(
        self,
        x: Array,
        weights: Array,
        name: str,
        experts: Experts,
        *,
        activation: Activation,
        plus: Array,
    ) -> Array:
        out = plus.copy()
        for each in range(experts.count):  # all of them, of all rows
            part = f"{name}.{each}"
            inner = active(
                self.linear(x, [f"{part}.{'gate' if experts.gated else 'up'}"]), activation
            )
            inner = inner * self.linear(x, [f"{part}.up"]) if experts.gated else inner
            out += weights[:, each, None] * self.linear(inner, [f"{part}.down"])
        return out

    def attend(self, layer: int, x: Array, heads: Heads) -> Array:
        rows, width, group = len(x), heads.width, heads.heads // heads.kv_heads
        cache: PlainCache = self._block.cache
        ends = np.cumsum([heads.heads, heads.kv_heads])
        q, k, v = np.split(x.reshape(rows, -1, width), ends, axis=1)
        q = self._turned(q, heads.rotary, heads.query_norm)
        k = self._turned(k, heads.rotary, heads.key_norm)
        cache.new[layer] = k, v
        old = cache.kept.get(layer, (k[:0], v[:0]))
        keys, values = np.concatenate([old[0], k]), np.concatenate([old[1], v])
        seen, out = block_mask(self._block, heads.window), np.zeros((rows, heads.heads, width))
        for row in range(rows):
            for index in range(heads.heads):
                mine = keys[seen[row], index // group], values[seen[row], index // group]
                scores = mine[0] @ q[row, index] * heads.scale
                chances = np.exp(scores - scores.max())
                out[row, index] = chances @ mine[1] / chances.sum()
        return out.reshape(rows, -1)

    def _turned(self, x: Array, rotary: Rotary | None, norm: str | None) -> Array:
        x = x if norm is None else self.norm(x, norm)
        if rotary is None:
            return x
        half = len(rotary.frequencies)
        angles = np.outer(self._block.positions, rotary.frequencies)[:, None]
        cos, sin = (f(angles) * rotary.factor for f in (np.cos, np.sin))
        a, b, rest = x[..., :half], x[..., half : 2 * half], x[..., 2 * half :]
        return np.concatenate([a * cos - b * sin, b * cos + a * sin, rest], axis=-1)

    def _get(self, name: str) -> Array:
        name = "embed" if name == "head" and name not in self._weights else name
        return self._weights[name].astype(np.float64)


def active(x: Array, activation: Activation) -> Array:
    if activation == "silu":
        return x / (1 + np.exp(-x))
    return x / 2 * (1 + np.tanh(np.sqrt(2 / np.pi) * (x + 0.044715 * x**3)))
