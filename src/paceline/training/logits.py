"""What losses are made of: log-probabilities of logits, and means over rows."""

from __future__ import annotations

from math import inf

import torch
from torch import Tensor
from torch.nn import functional

_LEAST_DEVIATION = 1e-6
"""Rewards that are all alike have no deviation to divide by."""

_LEAST_SUM = 1e-30
"""Divides weights that are all 0, and is far above what overflows."""


def log_probs(logits: Tensor) -> Tensor:
    """`[n, v]` log-probabilities in nats: float64 for float64 logits, float32 for all others."""
    wide = logits.dtype if logits.dtype == torch.float64 else torch.float32
    return functional.log_softmax(logits, dim=1, dtype=wide)


def likeliest(log_p: Tensor, top: int) -> Tensor | None:
    """int64 `[n, top]`, ids of the largest of each row; None where that would be all, or is 0."""
    return log_p.topk(top, dim=1).indices if 0 < top < log_p.shape[1] else None


def pooled(log_probabilities: Tensor, ids: Tensor | None) -> Tensor:
    """`[n, k + 1]`: the log-probabilities of `ids`, and of all other tokens together."""
    if ids is None:
        return log_probabilities
    rest = log_probabilities.scatter(1, ids, -inf).logsumexp(1, keepdim=True)
    return torch.cat([log_probabilities.gather(1, ids), rest], dim=1)


def expectation(log_p: Tensor, values: Tensor) -> Tensor:
    """`[n]` sums of p times values, where tokens without probability add nothing."""
    p = log_p.exp()
    return torch.where(p > 0, p * values, 0.0).sum(1)


def deviation(mean: Tensor) -> Tensor:
    """Standard deviation of a variable that is 0 or 1; a little more than 0 at least."""
    return (mean * (1 - mean)).clamp_min(0).sqrt().clamp_min(_LEAST_DEVIATION)


def shares(weights: Tensor, dtype: torch.dtype) -> Tensor:
    """`[n]` weights divided by their sum; zeros where all of them are."""
    wide = weights.to(dtype)
    return wide / wide.sum().clamp_min(_LEAST_SUM)


def weighted_mean(values: Tensor, weights: Tensor) -> Tensor:
    """Scalar mean of `[n]` values; 0 where all weights are."""
    return (values * shares(weights, values.dtype)).sum()
