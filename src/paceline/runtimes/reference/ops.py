"""`models.ops.Ops` in NumPy: the definition, in the arithmetic of the native kernels."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any, NamedTuple, Protocol

import numpy as np
import numpy.typing as npt

from paceline.core import target
from paceline.core.rows import RowStore
from paceline.core.target import (
    before_window,
    keys_seen,
    row_mask,
    row_parents,
    row_positions,
    stored,
)
from paceline.core.types import BoolArray, IntArray, LogitArray
from paceline.models.ops import (
    KV,
    Activation,
    Experts,
    Heads,
    Name,
    Names,
    Rotary,
    Rows,
    Sight,
    StateHeads,
    square_rows,
)
from paceline.runtimes.cpu.matrices import Formats, NetworkFormats
from paceline.runtimes.reference.arithmetic import (
    CHUNK,
    active,
    among,
    attention,
    delta_step,
    exact_gelu,
    exponential,
    fma,
    gated,
    in_order,
    layer_normed,
    normed,
    product,
    scan_step,
    sigmoid,
    softplus,
    turns,
    unit,
)
from paceline.runtimes.reference.formats import Matrix


@dataclass(slots=True)
class ReferenceCache:
    """Keys and values of one sequence, `[layers, 2, room, kv_heads, width]`; rows behind `length`
    are those of the last forward. There is room for the widest layer."""

    data: npt.NDArray[np.floating]
    length: int = 0
    # Of recurrent layers, by kind and layer: the arrays of the prefix, which are never written
    # again, and those behind the root and behind each of the rows after it in the last forward.
    states: dict[tuple[str, int], LogitArray] = field(default_factory=dict)
    rows: dict[tuple[str, int], list[LogitArray]] = field(default_factory=dict)
    memory: ReferenceCache | None = None
    window: int = 0  # of an endless text, as of `PagedCache`
    gone: int = 0

    def keep(self, row: int) -> None:
        """Make the states behind the root, or so many rows after it, those of the prefix."""
        self.states = {key: found[row] for key, found in self.rows.items()}

    def store(
        self, layer: int, begin: int, keys: LogitArray, values: LogitArray
    ) -> npt.NDArray[np.floating]:
        """Store rows from place `begin` on, and return keys and values of a layer up to them."""
        end = begin + len(keys)
        if end > self.data.shape[2]:
            more = np.zeros_like(self.data, shape=(*self.data.shape[:2], end, *self.data.shape[3:]))
            more = more[:, :, self.data.shape[2] :]
            self.data = np.concatenate([self.data, more], axis=2)
        part = self.read(layer, slice(begin, end), *keys.shape[1:])
        part[:] = keys, values
        return self.read(layer, slice(end), *keys.shape[1:])

    def read(self, layer: int, rows: slice, kv_heads: int, width: int) -> npt.NDArray[np.floating]:
        """Return some rows of a layer, a view `[2, rows, kv_heads, width]`."""
        return self.data[layer, :, rows, :kv_heads, :width]


class Seen(NamedTuple):
    """What some rows see.

    Attributes:
        positions: int64 `[rows]`, in the sequence.
        begin: place of the first row in the cache, unless a `KV` is seen.
        mask: bool `[rows, places]`.
        order: by row the places that it sees, where they do not ascend.
        own: windows count back from a row's position, if that is in front of the last place.
    """

    positions: IntArray
    begin: int
    mask: BoolArray
    order: Sequence[IntArray] = ()
    own: bool = False


class SeenRows(Protocol):
    """What the rows of one sequence see; `context` are committed, `lent` is the target's cache.

    `memory` is what an encoder wrote, or is to write, of `neighbours` by stride.
    """

    cache: ReferenceCache
    context: int
    lent: ReferenceCache | None
    memory: ReferenceCache | None
    neighbours: Mapping[int, IntArray]

    def see(self, kv: int | KV, rows: int, sees: Sight) -> Seen: ...


class AskedRows:
    """Rows of a model, as they are asked for."""

    def __init__(
        self,
        asked: target.Rows,
        memory: ReferenceCache | None = None,
        neighbours: Mapping[int, IntArray] = MappingProxyType({}),
    ) -> None:
        """`memory` is to be written; None if rows read that of their sequence."""
        self.neighbours = neighbours
        self.cache: ReferenceCache = asked.cache
        self.context = stored(self.cache)
        self.memory = memory or self.cache.memory
        self.lent: ReferenceCache | None = None
        self._asked, self._places = asked, row_positions(asked)

    def see(self, kv: int | KV, rows: int, sees: Sight) -> Seen:
        if isinstance(kv, KV) and kv.memory:
            assert self.memory is not None
            return Seen(self._places, 0, np.ones((rows, self.memory.length), np.bool_))
        asked, past = self._asked, self.context
        placed = asked.cached is not None and asked.cached.ndim == 2
        order = [keys_seen(asked, row, past) for row in range(rows)] if placed else ()
        return Seen(self._places, past, row_mask(asked), order, own=True)


class ReferenceOps:
    """Evaluates one forward of a sequence. Rows are float32, of drafts `[slots, width]`."""

    def __init__(
        self,
        formats: Formats | NetworkFormats,
        matrix: Callable[[str], Matrix],
        eps: float,
        sights: SeenRows,
        asked: target.Rows | None = None,
        rows: RowStore | None = None,
    ) -> None:
        """Bind them; `eps` is that of all norms. A model with states is `asked` for its rows.

        `rows` are those of ids from the vocabulary on, if there may be any.
        """
        self._formats, self._matrix, self._eps, self._sights = formats, matrix, eps, sights
        self._rows = rows
        self._root, self._parents = (asked.root, row_parents(asked)) if asked else (0, [])

    def weight(self, name: str) -> Rows:
        return self._formats.required(name)

    def embed(self, tokens: IntArray, scale: float = 1.0, table: str = "embed") -> Rows:
        if self._formats.in_file(table):
            return self._formats.table_rows(table, np.asarray(tokens)) * np.float32(scale)
        known, ids = self._matrix(table), np.asarray(tokens)
        if self._rows is not None and (far := ids >= self._rows.vocabulary).any():
            out = self.embed(np.where(far, 0, ids), scale, table)
            out[far] = self._rows.rows(ids[far])
            return out
        rows = known.numbers[ids]
        if known.scales is not None:
            least = np.float32(0) if known.minima is None else known.minima[ids][..., None]
            if known.lows is not None:
                least = least * known.lows[ids]
            rows = fma(rows, known.scales[ids][..., None], -least)
        rows = rows.reshape(*ids.shape, -1)
        return rows if scale == 1.0 else rows * np.float32(scale)

    def norm(self, x: Rows, name: str, *, residual: Rows = None, heads: int = 1) -> Rows:
        parts, weights = x.reshape(*x.shape[:-1], heads, -1), self._formats.required(name)
        own = weights.reshape(-1, parts.shape[-1])  # of all heads, or of each
        bias = self._formats.bias(name)
        if bias is None:
            out = normed(parts, own, self._eps).reshape(x.shape)
        else:
            out = layer_normed(x, weights, bias, self._eps)
        return out if residual is None else residual + out

    def linear(
        self, x: Rows, names: Names, *, norm: Name = None, scale: float = 1.0, residual: Rows = None
    ) -> Rows:
        x = x if norm is None else self.norm(x, norm)
        parts = [self._product(x, part) for part in self._formats.parts(names)]
        out = np.concatenate(parts, axis=-1)
        out = out if scale == 1.0 else out * np.float32(scale)
        return out if residual is None else residual + out

    def _product(self, x: Rows, part: str) -> Rows:
        out, bias = product(x, self._matrix(part)), self._formats.bias(part)
        return out if bias is None else out + bias

    def gated(
        self, x: Rows, names: Names, *, activation: Activation = "silu", norm: Name = None
    ) -> Rows:
        x = x if norm is None else self.norm(x, norm)
        gate, up = self._formats.parts(names, pair=True)
        return gated(self._product(x, gate), self._product(x, up), activation)

    def head(self, x: Rows, *, norm: str | None = None, scale: float = 1.0) -> Rows:
        return self.linear(x, ["head"], norm=norm, scale=scale)

    def silu(self, x: Rows) -> Rows:
        return active(x, "silu")

    def tanh(self, x: Rows) -> Rows:
        return sigmoid(x * np.float32(2)) * np.float32(2) - np.float32(1)

    def gelu(self, x: Rows, *, exact: bool = False) -> Rows:
        return exact_gelu(x) if exact else active(x, "gelu")

    def placed(self, x: Rows, table: str) -> Rows:
        positions = self._sights.see(0, len(x), "context").positions
        return x + self._formats.table_rows(table, positions)

    def neighbours(self, x: Rows, stride: int = 1) -> Rows:
        padded, read = np.pad(x, ((0, 1), (0, 0))), self._sights.neighbours[stride]
        return padded[read].reshape(len(read), -1)

    def squares(self, x: Rows, grid: int, side: int) -> Rows:
        return np.concatenate([x[rows] for rows in square_rows(len(x), grid, side)], axis=1)

    def times(self, x: Rows, by: str | float) -> Rows:
        number = self._formats.required(by).item() if isinstance(by, str) else by
        return x * np.float32(number)

    def relu2(self, x: Rows) -> Rows:
        return active(x, "relu2")

    def gate(self, x: Rows, by: Rows) -> Rows:
        return x * sigmoid(by)

    def concat(self, parts: Sequence[Rows]) -> Rows:
        return np.concatenate(parts, axis=-1)

    def split(self, x: Rows, sizes: Sequence[int]) -> list[Rows]:
        return np.split(x, np.cumsum(sizes)[:-1], axis=-1)

    def last(self, x: Rows, count: int = 1) -> Rows:
        return x[np.maximum(np.arange(len(x) - count, len(x)), 0)]

    def slots(self, x: Rows, count: int) -> Rows:
        return x.reshape(count, -1)

    def route(self, x: Rows, name: str, experts: Experts) -> Rows:
        scores = self.linear(x, [name])
        if not experts.used:
            scores, weights = np.maximum(scores, 0), self._formats.required(f"{name}_norm")
            mean = in_order(scores * scores) / experts.count + np.float32(self._eps)
            return scores * (1 / np.sqrt(mean))[:, None] * weights
        if experts.sigmoid:
            parts = sigmoid(scores)
            found = parts + self._formats.required(f"{name}_offset").ravel()
        else:
            found = parts = exponential(scores - scores.max(-1, keepdims=True))
        found = _of_best_groups(found, experts)
        used = np.argsort(-found, axis=-1, kind="stable")[:, : experts.used]
        own, out = np.take_along_axis(parts, used, axis=-1), np.zeros_like(parts)
        if experts.sum_to_one or not experts.sigmoid:
            own = own / in_order(own if experts.sum_to_one else parts)[:, None]
        np.put_along_axis(out, used, own * np.float32(experts.factor), axis=-1)
        return out

    def mix(
        self,
        x: Rows,
        weights: Rows,
        name: str,
        experts: Experts,
        activation: Activation,
        residual: Rows = None,
    ) -> Rows:
        out = np.zeros_like(x) if residual is None else residual.copy()
        for each in range(experts.count):
            part, rows = f"{name}.{each}", np.flatnonzero(weights[:, each])
            if experts.gated:
                names = [f"{part}.gate", f"{part}.up"]
                inner = self.gated(x[rows], names, activation=activation)
            else:
                inner = active(self.linear(x[rows], [f"{part}.up"]), activation)
            made = self.linear(inner, [f"{part}.down"])
            out[rows] = fma(made, weights[rows, each, None], out[rows])
        return out

    def attend(
        self, kv: int | KV, x: Rows, heads: Heads, sees: Sight = "context", newest: int = 1
    ) -> Rows:
        ends = np.cumsum([heads.heads, heads.kv_heads])
        q, k, v = np.split(x.reshape(len(x), -1, heads.width), ends, axis=1)
        if sees == "slots":
            k, v = (each.repeat(heads.heads // heads.kv_heads, axis=1) for each in (k, v))
            return among(q, k, v).reshape(len(x), -1)
        seen = self._sights.see(kv, len(x), sees)
        mask, q = seen.mask, self._turned(q, heads.rotary, heads.query_norm, seen.positions)
        if isinstance(kv, KV):
            cache = self._sights.lent if kv.target else self._sights.cache
            cache = self._sights.memory if kv.memory else cache
            assert cache is not None
            stored = cache.read(kv.layer, slice(mask.shape[1]), heads.kv_heads, heads.width)
        else:
            k = self._turned(k, heads.rotary, heads.key_norm, seen.positions)
            if heads.value_norm:
                v = normed(v, np.ones(1, np.float32), self._eps)
            stored = self._sights.cache.store(kv, seen.begin, k, v)
            if sees == "last":
                q, mask = self.last(q, newest), mask[[-1] * newest]
        groups = heads.heads // heads.kv_heads
        keys, values = stored.astype(np.float32).repeat(groups, axis=2)
        order = seen.order or [np.flatnonzero(row) for row in mask]
        own = seen.positions[-len(q) :].tolist() if seen.own else list(map(len, order))
        paths = _paths(order, heads.window, own)
        scale = np.full(len(q), heads.scale, np.float32)
        if heads.temperature is not None:
            scale = scale * heads.temperature.at(seen.positions[-len(q) :])
        sinks = None if heads.sinks is None else self._formats.required(heads.sinks)
        q = q * scale[:, None, None]
        return attention(q, keys, values, paths, sinks).reshape(len(q), -1)

    def store(self, layer: int, kv: Rows, heads: Heads) -> None:
        assert self._sights.memory is not None
        keys, values = np.split(kv.reshape(len(kv), -1, heads.width), [heads.kv_heads], axis=1)
        self._sights.memory.store(layer, self._sights.memory.length, keys, values)

    def convolve(self, layer: int, x: Rows, name: str, *, activated: bool = True) -> Rows:
        weights = self._formats.required(name).reshape(x.shape[1], -1)
        before = np.zeros((weights.shape[1] - 1, x.shape[1]), np.float32)
        read: list[LogitArray] = []  # by row
        for parent, row in zip(self._parents, x, strict=True):
            past = self._state("tail", layer, before) if parent < 0 else read[parent][1:]
            read.append(np.concatenate([past, row[None]]))
        self._note("tail", layer, [each[1:] for each in read])
        bias = self._formats.bias(name)
        out = np.zeros_like(x) if bias is None else np.broadcast_to(bias, x.shape)
        for tap, own in enumerate(np.stack(read, axis=1)):
            out = fma(own, weights[:, tap], out)
        return active(out, "silu") if activated else out

    def delta(self, layer: int, x: Rows, gates: Rows, name: str, of: StateHeads) -> Rows:
        parts = np.split(x, [of.keys, 2 * of.keys], axis=1)
        q, k, v = (
            part.reshape(len(x), -1, width)
            for part, width in zip(parts, (of.key_width,) * 2 + (of.value_width,), strict=True)
        )
        heads = [of.key_head(each) for each in range(of.value_heads)]
        q, k = unit(q)[:, heads] * np.float32(1 / math.sqrt(of.key_width)), unit(k)[:, heads]
        strength, decay = np.split(gates, 2, axis=1)
        rate, dt = (self._formats.required(f"{name}_{each}").ravel() for each in ("rate", "dt"))
        decay = exponential(rate * softplus(decay + dt))
        return self._each(delta_step, layer, of, [q, k, v, sigmoid(strength), decay])

    def scan(self, layer: int, x: Rows, steps: Rows, name: str, of: StateHeads) -> Rows:
        v, k, q = (
            part.reshape(len(x), -1, width)
            for part, width in zip(
                np.split(x, [of.values, of.values + of.keys], axis=1),
                (of.value_width, of.key_width, of.key_width),
                strict=True,
            )
        )
        heads = [of.key_head(each) for each in range(of.value_heads)]
        rate, dt, skip = (
            self._formats.required(f"{name}_{each}").ravel() for each in ("rate", "dt", "skip")
        )
        steps = softplus(steps + dt)
        rows = [q[:, heads], k[:, heads], v, steps, exponential(rate * steps)]
        read = self._each(scan_step, layer, of, rows)
        return fma(v, skip[:, None], read.reshape(v.shape)).reshape(read.shape)

    def _each(
        self, step: Callable[..., Any], layer: int, of: StateHeads, parts: Sequence[LogitArray]
    ) -> Rows:
        # What rows read of a state that each of them changes, `parts` being what it does so by.
        count = len(parts[0])
        states: list[LogitArray] = []
        out = np.empty((count, of.value_heads, of.value_width), np.float32)
        empty = np.zeros((of.value_heads, of.key_width, of.value_width), np.float32)
        for row, parent in enumerate(self._parents):
            state = self._state("sum", layer, empty) if parent < 0 else states[parent]
            state, out[row] = step(state, *(each[row] for each in parts))
            states.append(state)
            if 0 < row <= self._root:
                states[row - 1] = empty  # no row reads it
        self._note("sum", layer, states)
        return out.reshape(count, -1)

    def _state(self, kind: str, layer: int, empty: LogitArray) -> LogitArray:
        return self._sights.cache.states.get((kind, layer), empty)

    def _note(self, kind: str, layer: int, states: list[LogitArray]) -> None:
        self._sights.cache.rows[kind, layer] = states[self._root :]

    def _turned(
        self, x: Rows, rotary: Rotary | None, norm: str | None, positions: IntArray
    ) -> Rows:
        x = x if norm is None else self.norm(x, norm)
        if rotary is None:
            return x
        half = len(rotary.frequencies)
        angles = np.outer(positions, rotary.frequencies)[:, None]
        cos, sin = turns(angles, rotary.factor)
        a, b, rest = x[..., :half], x[..., half : 2 * half], x[..., 2 * half :]
        return np.concatenate([a * cos - b * sin, b * cos + a * sin, rest], axis=-1)


def _of_best_groups(scores: LogitArray, experts: Experts) -> LogitArray:
    if experts.groups_used == experts.groups:
        return scores
    groups = scores.reshape(len(scores), experts.groups, -1)
    best = -np.sort(-groups, axis=-1)
    order = np.argsort(-(best[..., 0] + best[..., 1]), axis=-1, kind="stable")
    out = groups.copy()
    np.put_along_axis(out, order[:, experts.groups_used :, None], -np.inf, axis=1)
    return out.reshape(scores.shape)


def _paths(seen: Sequence[IntArray], window: int, positions: Iterable[int]) -> IntArray:
    longest = max(map(len, seen), default=0)
    paths: IntArray = np.full((len(seen), -(-longest // CHUNK) * CHUNK), -1)
    for path, own, position in zip(paths, seen, positions, strict=True):
        path[: len(own)] = own
        path[: before_window(len(own), position, window)] = -1
    return paths
