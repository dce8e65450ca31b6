"""Drafter networks in plain NumPy, one sequence and one row at a time: what backends must equal.

Nothing is shared with the backends that ship. A cache is a list of rows. Draft rows are appended
behind the last context row and are dropped before the next, as decoding does it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import numpy as np
import numpy.typing as npt

from paceline.networks.base import Geometry, Network
from paceline.networks.ops import Ops, Sight

Array = npt.NDArray[np.float64]
Tokens = npt.NDArray[np.int64]


class PlainOps:
    """Context rows are `[rows, width]`, draft rows `[slots, width]`. Implements `Ops`."""

    def __init__(
        self,
        geometry: Geometry,
        parameters: Mapping[str, Array],
        embedding: Array,
        head: Array,
        reach: int = 0,
    ) -> None:
        """Bind the weights: of the network, and the target's embedding and LM head."""
        self._geometry = geometry
        self._parameters = parameters
        self._embedding = embedding
        self._head = head
        self._reach = reach
        self._caches: dict[int, list[tuple[Array, Array]]] = {}
        self._context_rows: dict[int, int] = {}
        self._target: list[tuple[Array, Array]] = []
        self._places: list[int] = []
        self._own: PlainOps | None = None  # runs the target's layers

    def drop_drafts(self) -> None:
        """Forget all rows but those of the context."""
        for layer, cache in self._caches.items():
            del cache[self._context_rows[layer] :]

    def drop_context_rows(self, count: int) -> None:
        """Forget the newest, which are about to be read again."""
        for layer, cache in self._caches.items():
            del cache[len(cache) - count :]
            self._context_rows[layer] -= count

    def forget_context_row(self, layer: int, row: int) -> None:
        """Lose a row, which decoding must never do."""
        del self._caches[layer][row]
        self._context_rows[layer] -= 1

    def weight(self, name: str) -> Array:
        return self._parameters[name]

    def linear(
        self, x: Array, name: str, *, norm: str | None = None, plus: Array | None = None
    ) -> Array:
        out = self._normed(x, norm) @ self._parameters[name].T
        if plus is None:
            return out
        assert plus.shape == out.shape
        return plus + out

    def gated(self, x: Array, name: str, *, norm: str | None = None) -> Array:
        gate, up = np.split(self.linear(x, name, norm=norm), 2, axis=-1)
        return self.silu(gate) * up

    def norm(self, x: Array, name: str) -> Array:
        mean_square = np.mean(x * x, axis=-1, keepdims=True)
        return x / np.sqrt(mean_square + self._geometry.norm_eps) * self._parameters[name]

    def silu(self, x: Array) -> Array:
        return x / (1 + np.exp(-x))

    def lstm_gate(self, gate: Array, x: Array) -> Array:
        return np.tanh(x) / (1 + np.exp(-gate))

    def concat(self, parts: Sequence[Array]) -> Array:
        return np.concatenate(parts, axis=-1)

    def split(self, x: Array, sizes: Sequence[int]) -> list[Array]:
        assert sum(sizes) == x.shape[-1]
        ends = np.cumsum(sizes)
        return [x[..., end - size : end] for size, end in zip(sizes, ends, strict=True)]

    def embed(self, tokens: Tokens) -> Array:
        return self._embedding[tokens]

    def embed_windows(self, tokens: Tokens) -> Array:
        return np.stack([np.concatenate([self._embedding[t] for t in row]) for row in tokens])

    def head(self, x: Array, *, norm: str | None = None) -> Array:
        return self._normed(x, norm) @ self._head.T

    def last(self, x: Array, count: int = 1) -> Array:
        return np.stack([x[max(0, len(x) - back)] for back in range(count, 0, -1)])

    def slots(self, x: Array, count: int) -> Array:
        assert len(x) == 1
        return x.reshape(count, -1)

    def attend(self, layer: int, x: Array, sees: Sight) -> Array:
        shape = self._geometry
        groups = (shape.heads, shape.kv_heads, shape.kv_heads)
        queries, keys, values = self.split(x, [count * shape.head_dim for count in groups])
        if sees == "slots":
            rows = list(zip(self._heads(keys), self._heads(values), strict=True))
            return np.stack([self._attend(query, rows) for query in self._heads(queries)])
        if sees in ("draft", "block"):
            return self._append(self._caches[layer], queries, keys, values, sees == "block")
        if sees == "again":
            cache = self._caches[layer]
            places = [max(0, len(cache) - back) for back in range(len(x), 0, -1)]
            pairs = zip(self._heads(queries), places, strict=True)
            return np.stack([self._attend(self._rotate(q, at), cache) for q, at in pairs])
        cache = self._caches.setdefault(layer, [])
        assert len(cache) == self._context_rows.get(layer, 0), "draft rows are still there"
        out = self._append(cache, queries, keys, values)
        self._context_rows[layer] = len(cache)
        if sees == "context":
            return out
        self._places = self._places[-1:]
        return self.last(out)

    def know_target(self, make: Callable[[Ops], tuple[Array, Array]]) -> None:
        if self._own is None:
            parts = self._geometry, self._parameters, self._embedding, self._head
            self._own = PlainOps(*parts)
        for key, value in zip(*map(self._heads, make(self._own)), strict=True):
            self._target.append((self._rotate(key, len(self._target)), value))

    def attend_target(self, queries: Array) -> Array:
        rows = zip(self._heads(queries), self._places, strict=True)
        return np.stack(
            [self._attend(self._rotate(q, at), self._target[: at + 1]) for q, at in rows]
        )

    def _append(
        self,
        cache: list[tuple[Array, Array]],
        queries: Array,
        keys: Array,
        values: Array,
        block: bool = False,
    ) -> Array:
        """Write rows, each of which sees the cache up to itself, or to the last of a block."""
        out = []
        self._places = [*range(len(cache), len(cache) + len(queries))]
        for place, key, value in zip(
            self._places, self._heads(keys), self._heads(values), strict=True
        ):
            cache.append((self._rotate(key, place), value))
        for place, query in zip(self._places, self._heads(queries), strict=True):
            first = max(0, place + 1 - self._reach) if self._reach else 0
            seen = cache[first : len(cache) if block else place + 1]
            out.append(self._attend(self._rotate(query, place), seen))
        return np.stack(out)

    def _attend(self, query: Array, rows: Sequence[tuple[Array, Array]]) -> Array:
        """`[heads * head_dim]` of a `[heads, head_dim]` query over `[kv_heads, head_dim]` rows."""
        shape = self._geometry
        out = []
        for head in range(shape.heads):
            shared = head // (shape.heads // shape.kv_heads)
            scores = np.array([query[head] @ key[shared] for key, _ in rows])
            weights = np.exp((scores - scores.max()) / np.sqrt(shape.head_dim))
            weights /= weights.sum()
            mixed = [w * value[shared] for w, (_, value) in zip(weights, rows, strict=True)]
            out.append(np.sum(mixed, axis=0))
        return np.concatenate(out)

    def _normed(self, x: Array, name: str | None) -> Array:
        return x if name is None else self.norm(x, name)

    def _heads(self, x: Array) -> Array:
        return x.reshape(len(x), -1, self._geometry.head_dim)

    def _rotate(self, x: Array, place: int) -> Array:
        """Rotary position of `[heads, head_dim]`: pairs are half a head apart."""
        half = self._geometry.head_dim // 2
        out = np.empty_like(x)
        for i in range(half):
            angle = place * self._geometry.rope_base ** (-i / half)
            cos, sin = np.cos(angle), np.sin(angle)
            out[:, i] = x[:, i] * cos - x[:, i + half] * sin
            out[:, i + half] = x[:, i + half] * cos + x[:, i] * sin
        return out


class PlainDrafter:
    """Drafts behind a text that grows."""

    def __init__(self, network: Network, ops: PlainOps) -> None:
        """Start with an empty context; windows that reach before it see zeros."""
        self._network = network
        self._ops = ops
        self._tokens = [0] * (network.window - 1)
        self._before: tuple[Array, list[int]] | None = None

    def draft(self, features: Array, tokens: Sequence[int], follow: Sequence[int]) -> Array:
        """Take in context rows and draft behind the last.

        Args:
            features: `[rows, 4 * width]` of positions that were not given before.
            tokens: what follows each; networks that read no features begin with the first token.
            follow: the draft's own tokens, as many as steps before the last take in.

        Returns:
            `[depth, columns]` logits.
        """
        network, ops = self._network, self._ops
        ops.drop_drafts()
        self._tokens += tokens
        if network.overlap:
            if self._before is not None:
                ops.drop_context_rows(len(self._before[1]))
                features = np.concatenate([self._before[0], features])
                tokens = [*self._before[1], *tokens]
            self._before = features[-network.overlap :], [*tokens[-network.overlap :]]
        state = network.start(ops, features, self._newest(len(tokens)))
        out = [network.logits(ops, state, 0)]
        for step in range(1, network.steps):
            drafted = follow[(step - 1) * network.width : step * network.width]
            state = network.advance(ops, state, np.array(drafted), step)
            out.append(network.logits(ops, state, step))
        return np.concatenate(out)

    def _newest(self, count: int) -> Tokens:
        window, length = self._network.window, len(self._tokens)
        if window == 1:
            return np.array(self._tokens[-count:])
        ends = range(length - count + 1, length + 1)
        return np.array([self._tokens[end - window : end] for end in ends])
