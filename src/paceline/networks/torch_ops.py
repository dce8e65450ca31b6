"""PyTorch backend of drafter networks, for training: drafts after every position at once.

Draft rows of position t see the context up to t and one another (EAGLE-3's training-time test).
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence

import torch
from torch import Tensor
from torch.nn import functional

from paceline.models.config import rotary_frequencies
from paceline.networks.base import Geometry
from paceline.networks.ops import Ops, Sight

ANCHORS = 4
"""First positions, which keep their place when training moves the others (LongSpec)."""


class TorchOps:
    """`Ops` for one pass over `[batch, time]` context rows; used once.

    `parameters` include the shared target weights; `head` has the draft vocabulary's rows alone.
    """

    def __init__(
        self,
        geometry: Geometry,
        parameters: Mapping[str, Tensor],
        embedding: Tensor,
        head: Tensor,
        reach: int = 0,
        offset: int | Tensor = 0,
    ) -> None:
        """Bind weights; positions from `ANCHORS` on are `offset` further on, int64 `[batch]`."""
        self._geometry = geometry
        self._parameters = parameters
        self._embedding = embedding
        self._head = head
        self._reach = reach
        self._offset = offset
        self._context: dict[int, tuple[Tensor, Tensor]] = {}
        self._drafted: dict[int, list[tuple[Tensor, Tensor]]] = defaultdict(list)
        self._places: Tensor  # of the rows that attended last, `[time, slots, 1]`
        self._target: tuple[Tensor, Tensor]

    def weight(self, name: str) -> Tensor:
        return self._parameters[name]

    def linear(
        self, x: Tensor, name: str, *, norm: str | None = None, plus: Tensor | None = None
    ) -> Tensor:
        out = functional.linear(self._normed(x, norm), self._parameters[name])
        return out if plus is None else plus + out

    def gated(self, x: Tensor, name: str, *, norm: str | None = None) -> Tensor:
        gate, up = self.linear(x, name, norm=norm).chunk(2, dim=-1)
        return functional.silu(gate) * up

    def norm(self, x: Tensor, name: str) -> Tensor:
        wide = x.to(torch.promote_types(x.dtype, torch.float32))
        scale = torch.rsqrt(wide.square().mean(-1, keepdim=True) + self._geometry.norm_eps)
        return (wide * scale).to(x.dtype) * self._parameters[name]

    def silu(self, x: Tensor) -> Tensor:
        return functional.silu(x)

    def lstm_gate(self, gate: Tensor, x: Tensor) -> Tensor:
        return gate.sigmoid() * x.tanh()

    def concat(self, parts: Sequence[Tensor]) -> Tensor:
        return torch.cat(list(parts), dim=-1)

    def split(self, x: Tensor, sizes: Sequence[int]) -> list[Tensor]:
        return list(torch.split(x, list(sizes), dim=-1))

    def embed(self, tokens: Tensor) -> Tensor:
        return functional.embedding(tokens, self._embedding)

    def embed_windows(self, tokens: Tensor) -> Tensor:
        return self.embed(tokens).flatten(-2)

    def head(self, x: Tensor, *, norm: str | None = None) -> Tensor:
        return functional.linear(self._normed(x, norm), self._head)

    def last(self, x: Tensor, count: int = 1) -> Tensor:
        return x[:, _newest(x.shape[1], count, x.device)]

    def slots(self, x: Tensor, count: int) -> Tensor:
        return _parted(x, count).squeeze(-3)

    def attend(self, layer: int, x: Tensor, sees: Sight) -> Tensor:
        shape = self._geometry
        sizes = [count * shape.head_dim for count in (shape.heads, shape.kv_heads, shape.kv_heads)]
        queries, keys, values = torch.split(x, sizes, dim=-1)
        qkv = queries, keys, values
        if sees == "slots":
            return self._among_slots(*qkv)
        if sees in ("draft", "block"):
            return self._draft_rows(layer, *qkv, sees == "block")
        if sees == "again":
            return self._rows_again(layer, queries)
        out = self._context_rows(layer, *qkv)
        return self.last(out) if sees == "last" else out

    def _context_rows(self, layer: int, queries: Tensor, keys: Tensor, values: Tensor) -> Tensor:
        shape = self._geometry
        places = torch.arange(queries.shape[1], device=queries.device)
        q = self._rotate(_parted(queries, shape.heads), places[:, None])
        k = self._rotate(_parted(keys, shape.kv_heads), places[:, None])
        v = _parted(values, shape.kv_heads)
        k, v = k.transpose(1, 2), v.transpose(1, 2)
        self._context[layer] = k, v
        self._places = places[:, None, None]
        seen = None
        if self._reach:
            back = places[:, None] - places
            seen = (back >= 0) & (back < self._reach)
        out = functional.scaled_dot_product_attention(
            q.transpose(1, 2), k, v, attn_mask=seen, is_causal=seen is None, enable_gqa=True
        )
        return out.transpose(1, 2).flatten(-2)

    def _rows_again(self, layer: int, queries: Tensor) -> Tensor:
        shape = self._geometry
        _, time, slots, _ = queries.shape
        keys, values = self._context[layer]
        places = _newest(time, slots, queries.device)
        q = self._rotate(_parted(queries, shape.heads), places[..., None])
        out = [  # each slot sees what its newest row sees
            functional.scaled_dot_product_attention(
                each.transpose(1, 2), keys, values, is_causal=True, enable_gqa=True
            )
            for each in q.unbind(2)
        ]
        return torch.stack([each.transpose(1, 2).flatten(-2) for each in out], dim=2)

    def _draft_rows(
        self, layer: int, queries: Tensor, keys: Tensor, values: Tensor, block: bool
    ) -> Tensor:
        shape = self._geometry
        batch, time, slots, _ = queries.shape
        drafted = self._drafted[layer]
        before = sum(k.shape[2] for k, _ in drafted)
        place = torch.arange(time, device=queries.device)[:, None] + 1 + before
        place = (place + torch.arange(slots, device=queries.device))[:, :, None]
        self._places = place
        q = self._rotate(_parted(queries, shape.heads), place)
        k = self._rotate(_parted(keys, shape.kv_heads), place)
        drafted.append((k, _parted(values, shape.kv_heads)))
        own_k, own_v = (torch.cat(part, dim=2) for part in zip(*drafted, strict=True))
        group = shape.heads // shape.kv_heads
        q = q.reshape(batch, time, slots, shape.kv_heads, group, -1) / math.sqrt(shape.head_dim)
        context_k, context_v = self._context[layer]
        # b batch, t and u time, s and r slots, k kv head, g query heads of it, d head_dim
        far = torch.einsum("btskgd,bkud->bkgtsu", q, context_k)
        at = torch.arange(time, device=q.device)
        hidden = (at > at[:, None])[:, None]
        if self._reach:
            hidden = hidden | (place - at >= self._reach)
        far = far.masked_fill(hidden, -math.inf)
        near = torch.einsum("btskgd,btrkd->bkgtsr", q, own_k)
        every = torch.ones(slots, before + slots, dtype=torch.bool, device=q.device)
        hidden = every.triu(before + (slots if block else 1))
        if self._reach:
            hidden = hidden | every.tril(before - self._reach)
        near = near.masked_fill(hidden, -math.inf)
        weights = torch.cat([far, near], dim=-1).softmax(-1)
        far, near = torch.split(weights, [time, before + slots], dim=-1)
        out = torch.einsum("bkgtsu,bkud->btskgd", far, context_v)
        out = out + torch.einsum("bkgtsr,btrkd->btskgd", near, own_v)
        return out.reshape(batch, time, slots, -1)

    def know_target(self, make: Callable[[Ops], tuple[Tensor, Tensor]]) -> None:
        # As the target computes them, where its texts stand; then they are moved.
        parts = self._geometry, self._parameters, self._embedding, self._head
        keys, values = make(TorchOps(*parts))
        count = self._geometry.kv_heads
        places = torch.arange(keys.shape[1], device=keys.device)[:, None]
        self._target = self._rotate(_parted(keys, count), places), _parted(values, count)

    def attend_target(self, queries: Tensor) -> Tensor:
        shape = self._geometry
        q = self._rotate(_parted(queries, shape.heads), self._places)
        group = shape.heads // shape.kv_heads
        q = q.reshape(*q.shape[:-2], shape.kv_heads, group, -1) / math.sqrt(shape.head_dim)
        keys, values = self._target
        scores = torch.einsum("btskgd,bukd->bkgtsu", q, keys)  # letters as in `_draft_rows`
        at = torch.arange(keys.shape[1], device=q.device)
        weights = scores.masked_fill((at > at[:, None])[:, None], -math.inf).softmax(-1)
        return torch.einsum("bkgtsu,bukd->btskgd", weights, values).reshape(queries.shape)

    def _among_slots(self, queries: Tensor, keys: Tensor, values: Tensor) -> Tensor:
        shape = self._geometry
        heads = shape.heads, shape.kv_heads, shape.kv_heads
        q, k, v = (
            _parted(x.flatten(0, 1), count).transpose(1, 2)
            for x, count in zip((queries, keys, values), heads, strict=True)
        )
        out = functional.scaled_dot_product_attention(q, k, v, enable_gqa=True)
        return out.transpose(1, 2).reshape(*queries.shape)

    def _normed(self, x: Tensor, name: str | None) -> Tensor:
        return x if name is None else self.norm(x, name)

    def _rotate(self, x: Tensor, places: Tensor) -> Tensor:
        # Rotary positions on `[..., heads, head_dim]`; `places` has an axis for the heads.
        offset = self._offset
        if isinstance(offset, Tensor):
            offset = offset.reshape(-1, *[1] * places.ndim)
        places = places + offset * (places >= ANCHORS)
        frequencies = torch.from_numpy(
            rotary_frequencies(self._geometry.rope_base, self._geometry.head_dim)
        ).to(places.device, torch.float32)
        angles = places[..., None].float() * frequencies
        cos, sin = angles.cos().to(x.dtype), angles.sin().to(x.dtype)
        first, second = x.chunk(2, dim=-1)
        return torch.cat([first * cos - second * sin, second * cos + first * sin], dim=-1)


def _newest(time: int, count: int, device: torch.device) -> Tensor:
    # Int64 `[time, count]`: the rows up to each, the first in place of those before it.
    back = torch.arange(1 - count, 1, device=device)
    return (torch.arange(time, device=device)[:, None] + back).clamp_min(0)


def _parted(x: Tensor, count: int) -> Tensor:
    # `[..., count, width]` from `[..., count * width]`.
    return x.reshape(*x.shape[:-1], count, -1)
