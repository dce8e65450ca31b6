"""`models.ops.Ops` in NumPy: every operation in the arithmetic of the native kernels."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from paceline.core import target
from paceline.core.target import row_mask, row_positions
from paceline.core.types import IntArray
from paceline.models.ops import Activation, Experts, Heads, Rotary, Rows
from paceline.runtimes.cpu.matrices import Formats
from paceline.runtimes.reference.arithmetic import (
    CHUNK,
    active,
    attention,
    exponential,
    fma,
    in_order,
    normed,
    product,
    turns,
)
from paceline.runtimes.reference.formats import Matrix


class ReferenceOps:
    """Evaluates one forward over the rows of a sequence, as float32."""

    def __init__(
        self, formats: Formats, matrix: Callable[[str], Matrix], eps: float, asked: target.Rows
    ) -> None:
        """Bind them; `eps` is that of all norms."""
        self._formats, self._matrix, self._eps, self._asked = formats, matrix, eps, asked
        self._positions = row_positions(asked)

    def embed(self, scale: float = 1.0) -> Rows:
        table, ids = self._matrix("embed"), np.array(self._asked.tokens)
        rows = table.numbers[ids]
        if table.scales is not None:
            minima = np.zeros_like(table.scales) if table.minima is None else table.minima
            rows = fma(rows, table.scales[ids][..., None], -minima[ids][..., None])
        rows = rows.reshape(len(ids), -1)
        return rows if scale == 1.0 else rows * np.float32(scale)

    def norm(self, x: Rows, name: str, *, plus: Rows | None = None) -> Rows:
        out = normed(x, self._formats.required(name), self._eps)
        return out if plus is None else plus + out

    def linear(
        self,
        x: Rows,
        names: Sequence[str],
        *,
        norm: str | None = None,
        scale: float = 1.0,
        plus: Rows | None = None,
    ) -> Rows:
        x = x if norm is None else self.norm(x, norm)
        parts = []
        for name in names:
            part, bias = product(x, self._matrix(name)), self._formats.vector(f"{name}.bias")
            parts.append(part if bias is None else part + bias)
        out = np.concatenate(parts, axis=-1)
        out = out if scale == 1.0 else out * np.float32(scale)
        return out if plus is None else plus + out

    def gated(
        self, x: Rows, gate: str, up: str, *, activation: Activation, norm: str | None = None
    ) -> Rows:
        x = x if norm is None else self.norm(x, norm)
        return active(self.linear(x, [gate]), activation) * self.linear(x, [up])

    def route(self, x: Rows, name: str, experts: Experts) -> Rows:
        scores = self.linear(x, [name])
        if not experts.used:
            scores, weights = np.maximum(scores, 0), self._formats.required(f"{name}_norm")
            mean = in_order(scores * scores) / experts.count + np.float32(self._eps)
            return scores * (1 / np.sqrt(mean))[:, None] * weights
        parts = exponential(scores - scores.max(-1, keepdims=True))
        used = np.argsort(-parts, axis=-1, kind="stable")[:, : experts.used]
        own = np.take_along_axis(parts, used, axis=-1)
        out = np.zeros_like(parts)
        whole = in_order(own if experts.sum_to_one else parts)
        np.put_along_axis(out, used, own / whole[:, None], axis=-1)
        return out

    def mix(
        self,
        x: Rows,
        weights: Rows,
        name: str,
        experts: Experts,
        *,
        activation: Activation,
        plus: Rows,
    ) -> Rows:
        out = plus.copy()
        for each in range(experts.count):
            part, rows = f"{name}.{each}", np.flatnonzero(weights[:, each])
            if experts.gated:
                names = f"{part}.gate", f"{part}.up"
                inner = self.gated(x[rows], *names, activation=activation)
            else:
                inner = active(self.linear(x[rows], [f"{part}.up"]), activation)
            made = self.linear(inner, [f"{part}.down"])
            out[rows] = fma(made, weights[rows, each, None], out[rows])
        return out

    def attend(self, layer: int, x: Rows, heads: Heads) -> Rows:
        ends = np.cumsum([heads.heads, heads.kv_heads])
        q, k, v = np.split(x.reshape(len(x), -1, heads.width), ends, axis=1)
        q = self._turned(q, heads.rotary, heads.query_norm) * np.float32(heads.scale)
        k = self._turned(k, heads.rotary, heads.key_norm)
        stored = self._asked.cache.store(layer, k, v).astype(np.float32)
        keys, values = stored.repeat(heads.heads // heads.kv_heads, axis=2)
        return attention(q, keys, values, self._paths(heads.window)).reshape(len(x), -1)

    def _paths(self, window: int) -> IntArray:
        seen = [np.flatnonzero(row) for row in row_mask(self._asked)]
        longest = max(map(len, seen), default=0)
        paths: IntArray = np.full((len(seen), -(-longest // CHUNK) * CHUNK), -1)
        for path, own in zip(paths, seen, strict=True):
            path[: len(own)] = own
            if window:
                path[: max(len(own) - window, 0)] = -1
        return paths

    def _turned(self, x: Rows, rotary: Rotary | None, norm: str | None) -> Rows:
        x = x if norm is None else self.norm(x, norm)
        if rotary is None:
            return x
        half = len(rotary.frequencies)
        angles = np.outer(self._positions, rotary.frequencies)[:, None]
        cos, sin = turns(angles, rotary.factor)
        a, b, rest = x[..., :half], x[..., half : 2 * half], x[..., 2 * half :]
        return np.concatenate([a * cos - b * sin, b * cos + a * sin, rest], axis=-1)
