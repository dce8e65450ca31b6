"""Key-value caches and attention of one sequence in PyTorch."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor
from torch.nn import functional

from paceline.core.target import Rows, row_parents
from paceline.errors import OutOfMemory
from paceline.networks.runner import Tail
from paceline.networks.torch_ops import Changes
from paceline.runtimes.torch.hybrid import hybrid

_GROW = 256  # smallest capacity of a cache in tokens


@dataclass(slots=True)
class TorchCache:
    """Keys and values of one sequence.

    Attributes:
        data: `[layers, 2, kv_heads, capacity, head_dim]`, keys at 0 and values at 1; for the widest
            layer.
        length: cached tokens. Rows after it belong to the last forward, until `keep`.
        states: of recurrent layers, by kind and layer; never written again.
        rows: those behind the root and each row after it in the last forward.
    """

    data: Tensor
    length: int = 0
    states: dict[tuple[str, int], Tensor] = field(default_factory=dict)
    rows: dict[tuple[str, int], Sequence[Tensor]] = field(default_factory=dict)

    def keep(self, row: int) -> None:
        """Make the states behind the root, or so many rows after it, those of the prefix."""
        self.states = {key: found[row].clone() for key, found in self.rows.items()}
        self.rows = {}

    @classmethod
    def empty(
        cls, layers: int, kv_heads: int, head_dim: int, like: tuple[torch.dtype, torch.device]
    ) -> TorchCache:
        dtype, device = like
        shape = (layers, 2, kv_heads, 0, head_dim)
        return cls(torch.empty(shape, dtype=dtype, device=device))


class RecurrentRows:
    """States of the sequences of a forward, one for each row of a draft."""

    def __init__(self, rows: Sequence[Rows]) -> None:
        self._rows = [(each.cache, each.root, row_parents(each)) for each in rows]
        self._sizes = list(map(len, rows))

    def convolve(self, layer: int, x: Tensor, weights: Tensor) -> Tensor:
        """Return rows `[rows, width]` convolved with weights `[width, taps]`."""
        past, out = weights.shape[1] - 1, []
        for (cache, root, parents), own in zip(
            self._rows, x.split_with_sizes(self._sizes), strict=True
        ):
            read: list[list[int]] = []  # by row
            for row, parent in enumerate(parents):
                before = list(range(past)) if parent < 0 else read[parent][1:]
                read.append([*before, past + row])
            tail = cache.states.get(("tail", layer))
            tail = own.new_zeros(past, own.shape[1]) if tail is None else tail
            inputs = torch.cat([tail, own])[torch.tensor(read, device=x.device)]
            cache.rows["tail", layer] = inputs[root:, 1:]
            out.append((inputs * weights.T).sum(1))
        return torch.cat(out)

    def scan(self, layer: int, rows: Changes) -> Tensor:
        """Return what rows read, `[rows, heads, value_width]`, one after another."""
        out = torch.empty_like(rows.values)
        heads, width = rows.keys.shape[1:]
        empty = rows.keys.new_zeros(heads, width, rows.values.shape[2])
        begin = 0
        for cache, root, parents in self._rows:
            states: list[Tensor] = []
            for row, parent in enumerate(parents):
                before = states[parent] if parent >= 0 else cache.states.get(("sum", layer), empty)
                q, k, v, strength, decay = (each[begin + row] for each in rows[:-1])
                state = before * decay[:, None, None]
                known = (state * k[:, :, None]).sum(1) if rows.delta else 0
                state = state + k[:, :, None] * ((v - known) * strength[:, None])[:, None]
                out[begin + row] = (state * q[:, :, None]).sum(1)
                states.append(state)
                if 0 < row <= root:
                    states[row - 1] = empty  # no row reads it
            cache.rows["sum", layer] = states[root:]
            begin += len(parents)
        return out


def attend(
    cache: Tensor,
    mask: Tensor | None,
    queries: Tensor,
    keys: Tensor | None = None,
    values: Tensor | None = None,
    scale: float | None = None,
    *,
    past: int = 0,
    sinks: Tensor | None = None,
) -> Tensor:
    """Write new rows, if any, to the cache of one layer and attend.

    Args:
        cache: `[2, kv_heads, capacity, head_dim]`.
        mask: bool `[rows, cached - past + rows]`; None if rows see all, and bring none.
        queries: `[rows, heads, head_dim]`.
        keys: `[rows, kv_heads, head_dim]`; of no heads, or None, if rows bring none.
        values: `[rows, kv_heads, head_dim]`.
        scale: of the scores; None for `head_dim ** -0.5`.
        past: cached rows, from the first, that all rows see, and the mask does not name.
        sinks: `[heads]` scores of no key; None for none.
    """
    rows, total = len(queries), cache.shape[2] if mask is None else past + mask.shape[1]
    if keys is not None and values is not None and keys.shape[1]:
        cache[0, :, total - rows : total] = keys.transpose(0, 1)
        cache[1, :, total - rows : total] = values.transpose(0, 1)
    if (past and mask is not None) or sinks is not None:
        scale = queries.shape[-1] ** -0.5 if scale is None else scale
        parts = ((each[:, :past], each[:, past:total]) for each in cache)
        prefix, new = zip(*parts, strict=True)
        return hybrid(queries, prefix, new, mask, scale, sinks)
    out = functional.scaled_dot_product_attention(
        queries.transpose(0, 1)[None],
        cache[0, None, :, :total],
        cache[1, None, :, :total],
        attn_mask=mask,
        scale=scale,
        enable_gqa=True,
    )
    return out[0].transpose(0, 1)


def reserve(cache: TorchCache, needed: int) -> None:
    """Grow the capacity to `needed` tokens at least, by doubling.

    Raises:
        OutOfMemory: no memory; the cache is unchanged then.
    """
    old = cache.data
    held = old.shape[3]
    if needed <= held:
        return
    capacity = max(_GROW, needed, 2 * held)
    try:
        context_update = old.new_empty((*old.shape[:3], capacity, old.shape[4]))
    except RuntimeError as error:  # torch's out-of-memory errors are of this kind
        raise OutOfMemory(
            f"no memory for a cache of {capacity} tokens: use shorter or fewer sequences"
        ) from error
    context_update[:, :, :, :held] = old
    cache.data = context_update


@dataclass(eq=False, slots=True)
class TorchNetworkCache:
    """Context rows of one sequence.

    Attributes:
        rows: keys and values of the network's layers.
        tail: last context rows.
        drafted: draft rows after the context, visible to branches.
        left: rows dropped by a sliding window.
        target: keys and values of the target, where the network reads them.
    """

    rows: TorchCache
    tail: Tail
    drafted: int = 0
    left: int = 0
    target: Tensor | None = None

    def slide(self, reach: int) -> None:
        """Drop rows outside a sliding window of `reach` rows; 0 keeps all."""
        stay = max(0, reach - 1)
        gone = self.rows.length - stay
        if reach and gone > stay:
            data = self.rows.data
            data[:, :, :, :stay] = data[:, :, :, gone : gone + stay]
            self.rows.length = stay
            self.left += gone
