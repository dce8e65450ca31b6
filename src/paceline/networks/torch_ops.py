"""`Ops` in PyTorch, for models, decoding and training: what differs is how rows attend.

In training drafts stand after every position at once. Draft rows of position t see the context up
to t and one another (EAGLE-3's training-time test).
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections import defaultdict
from collections.abc import Mapping, Sequence
from typing import NamedTuple, Protocol

import torch
from torch import Tensor
from torch.nn import functional

from paceline.errors import RuntimeUnavailable
from paceline.models.ops import (
    KV,
    Activation,
    Experts,
    Heads,
    Name,
    Names,
    Rotary,
    Sight,
    StateHeads,
)

_DEAF = "runtime 'torch' hears no sound: use --runtime cpu"

ANCHORS = 4
"""First positions, which keep their place when training moves the others (LongSpec)."""


class Tensors(Protocol):
    """Weights by name."""

    def tensor(self, name: str) -> Tensor: ...

    def rows(self, name: str, ids: Tensor) -> Tensor:
        """Return rows of a table."""
        ...

    def bias(self, name: str) -> Tensor | None: ...

    def linear(self, x: Tensor, name: str) -> Tensor:
        """Return rows times a matrix, plus its bias if it has one."""
        ...


class NetworkTensors:
    """Weights of a network: its parameters, and the target's embedding and LM head.

    `parameters` include the shared target weights, and may have an embedding and a head of their
    own; `head` has the draft vocabulary's rows alone.
    """

    def __init__(self, parameters: Mapping[str, Tensor], embedding: Tensor, head: Tensor) -> None:
        self._known = {"embed": embedding, "head": head, **parameters}

    def tensor(self, name: str) -> Tensor:
        return self._known[name]

    def rows(self, name: str, ids: Tensor) -> Tensor:
        return functional.embedding(ids, self._known[name])

    def bias(self, name: str) -> Tensor | None:
        return self._known.get(f"{name}.bias")

    def linear(self, x: Tensor, name: str) -> Tensor:
        return functional.linear(x, self._known[name], self.bias(name))


class Qkv(NamedTuple):
    """Queries, keys and values of rows, `[..., heads, width]` each; rotated.

    Of a `KV` rows bring no heads of keys and values.
    """

    queries: Tensor
    keys: Tensor
    values: Tensor


class Changes(NamedTuple):
    """What rows read and change of a state: `[rows, heads, width]`, and `[rows, heads]`.

    By the delta rule what keys read already comes off the values.
    """

    queries: Tensor
    keys: Tensor
    values: Tensor
    strengths: Tensor
    decays: Tensor
    delta: bool


class Attention(ABC):
    """How the rows of one forward attend."""

    @abstractmethod
    def places(self, kv: int | KV, x: Tensor, heads: Heads, sees: Sight) -> Tensor:
        """Return the positions of the rows of `x`, `[..., rows]`; the same object if they are."""

    @abstractmethod
    def attend(self, kv: int | KV, qkv: Qkv, heads: Heads, sees: Sight) -> Tensor:
        """Keep keys and values, and return `[..., heads, width]`; "last" is as "context"."""

    def last(self, x: Tensor, count: int) -> Tensor:
        """Return the newest context rows as draft rows, see `Ops.last`."""
        raise NotImplementedError("rows of a model are all read")

    def convolve(self, layer: int, x: Tensor, weights: Tensor) -> Tensor:
        """Return the causal convolution of rows of a model, with weights `[width, taps]`."""
        raise NotImplementedError("a network has no states")

    def scan(self, layer: int, rows: Changes) -> Tensor:
        """Return what rows of a model read of a state, `[rows, heads, value_width]`."""
        raise NotImplementedError("a network has no states")

    def newest(self, layer: int, queries: Tensor, heads: Heads) -> Tensor:
        """Attend once more with what `last` gave of the queries, which see one another."""
        raise NotImplementedError("rows of a model are all read")


class TorchOps:
    """Evaluates one forward; used once. Implements `models.ops.Ops`."""

    def __init__(self, weights: Tensors, eps: float, attention: Attention) -> None:
        """Bind them; `eps` is that of all norms."""
        self._weights, self._eps, self.attention = weights, eps, attention
        self._turns: dict[Rotary, tuple[Tensor, Tensor, Tensor]] = {}

    def weight(self, name: str) -> Tensor:
        return self._weights.tensor(name)

    def embed(self, tokens: Tensor, scale: float = 1.0, table: str = "embed") -> Tensor:
        out = self._weights.rows(table, tokens)
        return out if scale == 1.0 else out * scale

    def norm(
        self, x: Tensor, name: str, *, residual: Tensor | None = None, heads: int = 1
    ) -> Tensor:
        if (bias := self._weights.bias(name)) is not None:
            out = functional.layer_norm(x, x.shape[-1:], self.weight(name), bias, self._eps)
            return out if residual is None else residual + out
        parts = _parted(x, x.shape[-1] // heads) if heads > 1 else x
        weights, out = self._weights.tensor(name), self._normed(parts)
        weights = weights.reshape(-1, out.shape[-1]) if heads > 1 else weights
        out = (weights * out).flatten(-2) if heads > 1 else weights * out
        return out if residual is None else residual + out

    def _normed(self, x: Tensor) -> Tensor:
        # By the root of the mean square, in float32 or better.
        wide = x.to(torch.promote_types(x.dtype, torch.float32))
        scale = torch.rsqrt(wide.square().mean(-1, keepdim=True) + self._eps)
        return (wide * scale).to(x.dtype)

    def linear(
        self,
        x: Tensor,
        names: Names,
        *,
        norm: Name = None,
        scale: float = 1.0,
        residual: Tensor | None = None,
    ) -> Tensor:
        x = x if norm is None else self.norm(x, norm)
        parts = [self._weights.linear(x, name) for name in names]
        out = parts[0] if len(parts) == 1 else torch.cat(parts, dim=-1)
        out = out if scale == 1.0 else out * scale
        return out if residual is None else residual + out

    def gated(
        self, x: Tensor, names: Names, *, activation: Activation = "silu", norm: Name = None
    ) -> Tensor:
        x = x if norm is None else self.norm(x, norm)
        parts = [self._weights.linear(x, name) for name in names]
        gate, up = parts if len(parts) == 2 else parts[0].chunk(2, dim=-1)
        if activation == "clamped":
            gate, up = gate.clamp(max=7), up.clamp(-7, 7)
            return gate * (1.702 * gate).sigmoid() * (up + 1)
        return active(gate, activation) * up

    def head(self, x: Tensor, *, norm: str | None = None, scale: float = 1.0) -> Tensor:
        return self.linear(x, ["head"], norm=norm, scale=scale)

    def silu(self, x: Tensor) -> Tensor:
        return functional.silu(x)

    def tanh(self, x: Tensor) -> Tensor:
        return x.tanh()

    def gelu(self, x: Tensor, *, exact: bool = False) -> Tensor:
        return functional.gelu(x) if exact else active(x, "gelu")

    def placed(self, x: Tensor, table: str) -> Tensor:
        raise RuntimeUnavailable(_DEAF)

    def neighbours(self, x: Tensor, stride: int = 1) -> Tensor:
        raise RuntimeUnavailable(_DEAF)

    def store(self, layer: int, kv: Tensor, heads: Heads) -> None:
        raise RuntimeUnavailable(_DEAF)

    def squares(self, x: Tensor, grid: int, side: int) -> Tensor:
        raise RuntimeUnavailable("towers do not run in torch: they run on runtimes cpu, reference")

    def times(self, x: Tensor, by: str | float) -> Tensor:
        return x * (self._weights.tensor(by) if isinstance(by, str) else by)

    def relu2(self, x: Tensor) -> Tensor:
        return active(x, "relu2")

    def gate(self, x: Tensor, by: Tensor) -> Tensor:
        return x * by.sigmoid()

    def concat(self, parts: Sequence[Tensor]) -> Tensor:
        return torch.cat(list(parts), dim=-1)

    def split(self, x: Tensor, sizes: Sequence[int]) -> list[Tensor]:
        return list(torch.split(x, list(sizes), dim=-1))

    def last(self, x: Tensor, count: int = 1) -> Tensor:
        return self.attention.last(x, count)

    def slots(self, x: Tensor, count: int) -> Tensor:
        return x.reshape(*x.shape[:-2], count, -1)

    def attend(
        self, kv: int | KV, x: Tensor, heads: Heads, sees: Sight = "context", newest: int = 1
    ) -> Tensor:
        rows = _parted(x, heads.width)
        ends = heads.heads, heads.heads + heads.kv_heads
        queries, keys, values = rows.tensor_split(ends, dim=-2)
        if sees == "slots":
            return among_slots(Qkv(queries, keys, values), heads).flatten(-2)
        places = self.attention.places(kv, x, heads, sees)
        queries = self._placed(queries, heads, heads.query_norm, places)
        keys = self._placed(keys, heads, heads.key_norm, places)
        if heads.temperature is not None:
            factors = torch.tensor(heads.temperature.factors).to(queries)
            steps = (places // heads.temperature.span).long().clamp(max=len(factors) - 1)
            queries = queries * factors[steps][..., None, None]
        values = self._normed(values) if heads.value_norm else values
        out = self.attention.attend(kv, Qkv(queries, keys, values), heads, sees)
        if sees == "last" and not isinstance(kv, KV):
            rows = self.last(queries, newest)
            out = self.last(out) if newest == 1 else self.attention.newest(kv, rows, heads)
        return out.flatten(-2)

    def convolve(self, layer: int, x: Tensor, name: str, *, activated: bool = True) -> Tensor:
        weights = self._weights.tensor(name).reshape(x.shape[-1], -1)
        out, bias = self.attention.convolve(layer, x, weights), self._weights.bias(name)
        out = out if bias is None else out + bias
        return functional.silu(out) if activated else out

    def delta(self, layer: int, x: Tensor, gates: Tensor, name: str, of: StateHeads) -> Tensor:
        exact = torch.promote_types(x.dtype, torch.float32)
        sizes = [of.keys, of.keys, of.values]
        q, k, v = x.to(exact).split_with_sizes(sizes, dim=-1)
        strengths, decays = gates.to(exact).chunk(2, dim=-1)
        vectors = (self._weights.tensor(f"{name}_{each}") for each in ("rate", "dt"))
        rate, dt = (each.flatten().to(exact) for each in vectors)
        heads = [of.key_head(each) for each in range(of.value_heads)]
        q, k = (_of_length_one(_parted(each, of.key_width))[:, heads] for each in (q, k))
        changes = Changes(
            q / math.sqrt(of.key_width),
            k,
            _parted(v, of.value_width),
            strengths.sigmoid(),
            (rate * functional.softplus(decays + dt)).exp(),
            delta=True,
        )
        return self.attention.scan(layer, changes).flatten(-2).to(x.dtype)

    def scan(self, layer: int, x: Tensor, steps: Tensor, name: str, of: StateHeads) -> Tensor:
        exact = torch.promote_types(x.dtype, torch.float32)
        v, k, q = x.to(exact).split_with_sizes([of.values, of.keys, of.keys], dim=-1)
        vectors = (self._weights.tensor(f"{name}_{each}") for each in ("rate", "dt", "skip"))
        rate, dt, skip = (each.flatten().to(exact) for each in vectors)
        heads = [of.key_head(each) for each in range(of.value_heads)]
        q, k = (_parted(each, of.key_width)[:, heads] for each in (q, k))
        v, steps = _parted(v, of.value_width), functional.softplus(steps.to(exact) + dt)
        changes = Changes(q, k, v, steps, (rate * steps).exp(), delta=False)
        read = self.attention.scan(layer, changes)
        return (read + skip[:, None] * v).flatten(-2).to(x.dtype)

    def route(self, x: Tensor, name: str, experts: Experts) -> Tensor:
        exact = torch.promote_types(x.dtype, torch.float32)
        scores = self.linear(x, [name]).to(exact)
        if not experts.used:
            return self.norm(scores.relu().to(x.dtype), f"{name}_norm")
        shares = scores.sigmoid() if experts.sigmoid else scores.softmax(-1)
        offset = self._weights.tensor(f"{name}_offset").flatten() if experts.sigmoid else 0
        # Of equal ones the first, which `topk` does not guarantee.
        order = _of_best_groups(shares + offset, experts).argsort(
            dim=-1, descending=True, stable=True
        )
        order = order[..., : experts.used]
        found = shares.gather(-1, order)
        found = found / found.sum(-1, keepdim=True) if experts.sum_to_one else found
        found = found * experts.factor
        return torch.zeros_like(shares).scatter(-1, order, found).to(x.dtype)

    def mix(
        self,
        x: Tensor,
        weights: Tensor,
        name: str,
        experts: Experts,
        activation: Activation,
        residual: Tensor | None = None,
    ) -> Tensor:
        shape, x, weights = x.shape, x.flatten(0, -2), weights.flatten(0, -2)
        out = torch.zeros_like(x) if residual is None else residual.flatten(0, -2).clone()
        for each in range(experts.count):
            (rows,) = weights[:, each].nonzero(as_tuple=True)
            if not len(rows) and len(x):  # of no rows all are read: it finds what is missing
                continue
            part, at = f"{name}.{each}", x[rows]
            if experts.gated:
                inner = self.gated(at, [f"{part}.gate", f"{part}.up"], activation=activation)
            else:
                inner = active(self.linear(at, [f"{part}.up"]), activation)
            made = self.linear(inner, [f"{part}.down"])
            out = out.index_add(0, rows, made * weights[rows, each, None])
        return out.reshape(shape)

    def _placed(self, x: Tensor, heads: Heads, norm: Name, places: Tensor) -> Tensor:
        rotary = heads.rotary
        x = x if norm is None else self.norm(x, norm)
        if rotary is None:
            return x
        known = self._turns.get(rotary)
        if known is None or known[0] is not places:
            exact = torch.promote_types(x.dtype, torch.float32)
            frequencies = torch.tensor(rotary.frequencies, dtype=torch.float64)
            angles = places.to(exact)[..., None, None] * frequencies.to(x.device, exact)
            turns = (angles.cos() * rotary.factor, angles.sin() * rotary.factor)
            known = self._turns[rotary] = places, turns[0].to(x.dtype), turns[1].to(x.dtype)
        _, cos, sin = known
        half = cos.shape[-1]
        first, second, rest = x[..., :half], x[..., half : 2 * half], x[..., 2 * half :]
        return torch.cat([first * cos - second * sin, second * cos + first * sin, rest], dim=-1)


def _of_length_one(x: Tensor) -> Tensor:
    return x * torch.rsqrt(x.square().sum(-1, keepdim=True) + 1e-6)


def _of_best_groups(scores: Tensor, experts: Experts) -> Tensor:
    if experts.groups_used == experts.groups:
        return scores
    size = experts.count // experts.groups
    groups = scores.reshape(*scores.shape[:-1], experts.groups, size)
    sums = groups.sort(-1, descending=True)[0][..., :2].sum(-1)
    last = sums.argsort(dim=-1, descending=True, stable=True)[..., experts.groups_used :]
    last = last[..., None].expand(*last.shape, size)
    return groups.scatter(-2, last, -math.inf).flatten(-2)


def active(x: Tensor, activation: Activation) -> Tensor:
    if activation == "relu2":
        return functional.relu(x).square()
    return functional.silu(x) if activation == "silu" else functional.gelu(x, approximate="tanh")


def among_slots(qkv: Qkv, heads: Heads) -> Tensor:
    """Attend among the slots of draft rows, `[..., slots, heads, width]`."""
    shape = qkv.queries.shape
    q, k, v = (each.flatten(0, -4).transpose(-3, -2) for each in qkv)
    out = functional.scaled_dot_product_attention(q, k, v, scale=heads.scale, enable_gqa=True)
    return out.transpose(-3, -2).reshape(shape)


class TextAttention(Attention):
    """Whole texts, `[batch, time]`, and drafts after every position of them."""

    def __init__(self, offset: int | Tensor = 0) -> None:
        """Start; positions from `ANCHORS` on are `offset` further on, int64 `[batch]`."""
        self._offset = offset
        self._context: dict[int, tuple[Tensor, Tensor]] = {}
        self._drafted: dict[int, list[tuple[Tensor, Tensor]]] = defaultdict(list)
        self._slots: dict[int | KV, int] = defaultdict(int)  # drafted so far
        self._places: Tensor  # of the rows that attended last

    def last(self, x: Tensor, count: int) -> Tensor:
        return x[:, _newest(x.shape[1], count, x.device)]

    def places(self, kv: int | KV, x: Tensor, heads: Heads, sees: Sight) -> Tensor:
        places = torch.arange(x.shape[1], device=x.device)
        if sees in ("draft", "block"):
            ahead = 1 + self._slots[kv] + torch.arange(x.shape[2], device=x.device)
            places = places[:, None] + ahead
            self._slots[kv] += x.shape[2]
        elif isinstance(kv, KV):
            places = _newest(len(places), x.shape[2], x.device)
        self._places = places
        # Moved: `[batch, ...]` if the texts differ in that.
        offset = self._offset
        if isinstance(offset, Tensor):
            offset = offset.reshape(-1, *[1] * places.ndim)
        return places + offset * (places >= ANCHORS)

    def attend(self, kv: int | KV, qkv: Qkv, heads: Heads, sees: Sight) -> Tensor:
        if isinstance(kv, KV):
            return self._target_rows(kv.layer, qkv.queries, heads)
        if sees in ("draft", "block"):
            return self._draft_rows(kv, qkv, heads, sees == "block")
        q, k, v = (each.transpose(1, 2) for each in qkv)
        self._context[kv] = k, v
        seen = None
        if heads.window:
            places = torch.arange(q.shape[2], device=q.device)
            back = places[:, None] - places
            seen = (back >= 0) & (back < heads.window)
        out = functional.scaled_dot_product_attention(
            q, k, v, attn_mask=seen, is_causal=seen is None, scale=heads.scale, enable_gqa=True
        )
        return out.transpose(1, 2)

    def newest(self, layer: int, queries: Tensor, heads: Heads) -> Tensor:
        keys, values = self._context[layer]
        out = [  # each slot sees what its newest row sees
            functional.scaled_dot_product_attention(
                each.transpose(1, 2),
                keys,
                values,
                is_causal=True,
                scale=heads.scale,
                enable_gqa=True,
            )
            for each in queries.unbind(2)
        ]
        return torch.stack([each.transpose(1, 2) for each in out], dim=2)

    def _draft_rows(self, layer: int, qkv: Qkv, heads: Heads, block: bool) -> Tensor:
        q, keys, values = qkv
        batch, time, slots = q.shape[:3]
        drafted = self._drafted[layer]
        before = sum(each.shape[2] for each, _ in drafted)
        drafted.append((keys, values))
        own_k, own_v = (torch.cat(part, dim=2) for part in zip(*drafted, strict=True))
        q = q.reshape(batch, time, slots, heads.kv_heads, -1, heads.width) * heads.scale
        context_k, context_v = self._context[layer]
        # b batch, t and u time, s and r slots, k kv head, g query heads of it, d width
        far = torch.einsum("btskgd,bkud->bkgtsu", q, context_k)
        at = torch.arange(time, device=q.device)
        hidden = (at > at[:, None])[:, None]
        if heads.window:
            hidden = hidden | (self._places[..., None] - at >= heads.window)
        far = far.masked_fill(hidden, -math.inf)
        near = torch.einsum("btskgd,btrkd->bkgtsr", q, own_k)
        every = torch.ones(slots, before + slots, dtype=torch.bool, device=q.device)
        hidden = every.triu(before + (slots if block else 1))
        if heads.window:
            hidden = hidden | every.tril(before - heads.window)
        near = near.masked_fill(hidden, -math.inf)
        weights = torch.cat([far, near], dim=-1).softmax(-1)
        far, near = torch.split(weights, [time, before + slots], dim=-1)
        out = torch.einsum("bkgtsu,bkud->btskgd", far, context_v)
        out = out + torch.einsum("bkgtsr,btrkd->btskgd", near, own_v)
        return out.flatten(3, 4)

    def _target_rows(self, layer: int, queries: Tensor, heads: Heads) -> Tensor:
        q = queries.reshape(*queries.shape[:-2], heads.kv_heads, -1, heads.width) * heads.scale
        keys, values = self._context[layer]
        scores = torch.einsum("btskgd,bkud->bkgtsu", q, keys)  # letters as in `_draft_rows`
        back = torch.arange(keys.shape[2], device=q.device)
        back = back[:, None] - back
        hidden = (back < 0) | (back >= (heads.window or len(back)))
        weights = scores.masked_fill(hidden[:, None], -math.inf).softmax(-1)
        return torch.einsum("bkgtsu,bkud->btskgd", weights, values).flatten(-3, -2)


def _newest(time: int, count: int, device: torch.device) -> Tensor:
    # Int64 `[time, count]`: the rows up to each, the first in place of those before it.
    back = torch.arange(1 - count, 1, device=device)
    return (torch.arange(time, device=device)[:, None] + back).clamp_min(0)


def _parted(x: Tensor, width: int) -> Tensor:
    # `[..., heads, width]` from `[..., heads * width]`.
    return x.reshape(*x.shape[:-1], x.shape[-1] // width, width)
