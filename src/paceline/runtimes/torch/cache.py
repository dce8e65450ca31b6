"""Key-value caches and attention of one sequence in PyTorch."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional

from paceline.errors import OutOfMemory
from paceline.networks.runner import Tail
from paceline.runtimes.torch.hybrid import hybrid

_GROW = 256  # smallest capacity of a cache in tokens


@dataclass(slots=True)
class TorchCache:
    """Keys and values of one sequence.

    Attributes:
        data: `[layers, 2, kv_heads, capacity, head_dim]`, keys at 0 and values at 1.
        length: cached tokens. Rows after it belong to the last forward, until `keep`.
    """

    data: Tensor
    length: int = 0

    @classmethod
    def empty(
        cls, layers: int, kv_heads: int, head_dim: int, like: tuple[torch.dtype, torch.device]
    ) -> TorchCache:
        dtype, device = like
        shape = (layers, 2, kv_heads, 0, head_dim)
        return cls(torch.empty(shape, dtype=dtype, device=device))


def attend(
    cache: Tensor,
    mask: Tensor,
    queries: Tensor,
    keys: Tensor | None = None,
    values: Tensor | None = None,
    scale: float | None = None,
    *,
    past: int = 0,
) -> Tensor:
    """Write new rows, if any, to the cache of one layer and attend.

    Args:
        cache: `[2, kv_heads, capacity, head_dim]`.
        mask: bool `[rows, cached - past + rows]`.
        queries: `[rows, heads, head_dim]`.
        keys: `[rows, kv_heads, head_dim]`.
        values: `[rows, kv_heads, head_dim]`.
        scale: of the scores; None for `head_dim ** -0.5`.
        past: cached rows, from the first, that all rows see, and the mask does not name.
    """
    rows, total = len(mask), past + mask.shape[1]
    if keys is not None and values is not None:
        cache[0, :, total - rows : total] = keys.transpose(0, 1)
        cache[1, :, total - rows : total] = values.transpose(0, 1)
    if past:
        scale = queries.shape[-1] ** -0.5 if scale is None else scale
        parts = ((each[:, :past], each[:, past:total]) for each in cache)
        prefix, new = zip(*parts, strict=True)
        return hybrid(queries, prefix, new, mask, scale)
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
        tail: last context tokens.
        drafted: draft rows after the context, visible to branches.
        left: rows dropped by a sliding window.
        target: shared keys and values of the target, where the network reads them.
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
