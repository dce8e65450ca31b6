"""Hybrid tree attention (LongSpec, Yang et al. 2025, arXiv:2502.17421, section 3.3).

All rows see the whole cached prefix: a fast kernel reads it without a mask. A mask is needed among
the new rows alone. The two are merged by their log-sum-exp.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

LONG = 4096
"""Cached tokens from which this is faster than one mask, on a CPU; not measured on CUDA."""


class Part(NamedTuple):
    """Attention over some of the keys.

    Attributes:
        out: `[kv_heads, rows, head_dim]`, softmax over these keys alone.
        lse: `[kv_heads, rows]`, the logarithm of its denominator.
    """

    out: Tensor
    lse: Tensor


def hybrid(
    queries: Tensor,
    prefix: tuple[Tensor, Tensor],
    new: tuple[Tensor, Tensor],
    mask: Tensor | None,
    scale: float,
    sinks: Tensor | None = None,
) -> Tensor:
    """Attend to a prefix and to the new rows.

    Args:
        queries: `[rows, heads, head_dim]`.
        prefix: keys and values that all rows see, `[kv_heads, cached, head_dim]`; may be none.
        new: others, `[kv_heads, keys, head_dim]`.
        mask: bool `[rows, keys]`, which of these each row sees; None for all.
        scale: of the scores.
        sinks: `[heads]` scores of no key; None for none.

    Returns:
        `[rows, heads, head_dim]`.
    """
    rows, heads, width = queries.shape
    kv_heads = prefix[0].shape[0]
    # Query heads of one key head are rows of it: without a mask all rows are alike.
    q = queries.to(prefix[0].dtype)  # autocast leaves keys that are cached as they are
    q = q.reshape(rows, kv_heads, -1, width).permute(1, 2, 0, 3).flatten(1, 2)
    found = masked(q, *new, None if mask is None else mask.repeat(heads // kv_heads, 1), scale)
    if prefix[0].shape[1]:
        found = merge(unmasked(q, *prefix, scale), found)
    out = found.out
    if sinks is not None:
        sinks = sinks.reshape(kv_heads, -1).repeat_interleave(rows, 1)
        out = out * (found.lse - sinks).sigmoid()[..., None].to(out.dtype)
    out = out.reshape(kv_heads, -1, rows, width).permute(2, 0, 1, 3).flatten(1, 2)
    return out.to(queries.dtype)


def unmasked(q: Tensor, keys: Tensor, values: Tensor, scale: float) -> Part:
    """Attend to all keys: by a flash kernel where torch has one that tells its log-sum-exp."""
    given = q[None], keys[None], values[None]
    if q.device.type == "cpu":
        found = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu(*given, scale=scale)
    elif q.dtype in (torch.float16, torch.bfloat16):
        found = torch.ops.aten._scaled_dot_product_flash_attention(*given, scale=scale)
    else:
        return masked(q, keys, values, None, scale)
    return Part(found[0][0], found[1][0])


def masked(q: Tensor, keys: Tensor, values: Tensor, mask: Tensor | None, scale: float) -> Part:
    """Attend to the keys that bool `[rows, keys]` names, at least one for each row; None: all."""
    scores = (q @ keys.mT * scale).to(torch.promote_types(q.dtype, torch.float32))
    if mask is not None:
        scores = scores.masked_fill(~mask, -torch.inf)
    lse = scores.logsumexp(-1)
    return Part((scores - lse[..., None]).exp().to(values.dtype) @ values, lse)


def merge(a: Part, b: Part) -> Part:
    """Return attention over the keys of both."""
    share = (a.lse - b.lse).sigmoid()[..., None].to(a.out.dtype)
    return Part(share * a.out + (1 - share) * b.out, torch.logaddexp(a.lse, b.lse))
