"""Distillation losses between teacher p (target) and student q (drafter).

The gradient is computed with the value, a chunk of rows at a time, and saved alone for backward;
no second derivative. With g = q * dD/dq (up to a multiple of q), the gradient is g - q * sum(g),
the softmax derivative.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from math import inf, log, log1p
from typing import Any, ClassVar, Literal

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable
from torch.nn import functional

from paceline.core.expressions import parse
from paceline.core.options import arguments, require
from paceline.errors import InvalidOption

# Logits per chunk: enough for a GPU, few enough for a CPU's cache.
_CHUNK = 1 << 20

# Log-probability of impossible tokens: 0 times it is 0.
_NO_CHANCE = -1e30

# Avoids division by 0 where all rewards are equal.
_LEAST_DEVIATION = 1e-6

# Avoids division by 0 where all weights are 0.
_LEAST_SUM = 1e-30


def log_probs(logits: Tensor) -> Tensor:
    """Return `[n, v]` log-probabilities in nats: float64 for float64 logits, else float32."""
    wide = logits.dtype if logits.dtype == torch.float64 else torch.float32
    return functional.log_softmax(logits, dim=1, dtype=wide)


def top_k(log_p: Tensor, top: int) -> Tensor | None:
    """Return int64 `[n, top]`, ids of the top-k of each row; None if `top` is 0 or covers all."""
    return log_p.topk(top, dim=1).indices if 0 < top < log_p.shape[1] else None


def pooled(log_probabilities: Tensor, ids: Tensor | None) -> Tensor:
    """Return `[n, k + 1]`: log-probabilities of `ids`, and of all other tokens as one event."""
    if ids is None:
        return log_probabilities
    rest = log_probabilities.scatter(1, ids, -inf).logsumexp(1, keepdim=True)
    return torch.cat([log_probabilities.gather(1, ids), rest], dim=1)


def expectation(log_p: Tensor, values: Tensor) -> Tensor:
    """Return `[n]` sums of p times values, where p = 0 adds 0."""
    p = log_p.exp()
    return torch.where(p > 0, p * values, 0.0).sum(1)


def deviation(mean: Tensor) -> Tensor:
    """Return the standard deviation of a Bernoulli variable, bounded away from 0."""
    return (mean * (1 - mean)).clamp_min(0).sqrt().clamp_min(_LEAST_DEVIATION)


def shares(weights: Tensor, dtype: torch.dtype) -> Tensor:
    """Return `[n]` weights divided by their sum; zeros where all are 0."""
    wide = weights.to(dtype)
    return wide / wide.sum().clamp_min(_LEAST_SUM)


def weighted_mean(values: Tensor, weights: Tensor) -> Tensor:
    """Return the scalar mean of `[n]` values; 0 where all weights are 0."""
    return (values * shares(weights, values.dtype)).sum()


class Loss(ABC):
    """Training loss of one draft depth."""

    name: ClassVar[str]

    def __call__(self, student: Tensor, teacher: Tensor, labels: Tensor, weights: Tensor) -> Tensor:
        """Return the weighted mean over rows, in nats for entropies; 0 if no row counts.

        Args:
            student: `[n, v]` finite logits. Computed in float32, or float64 if given so.
            teacher: `[n, v]` logits over the same (draft) vocabulary; no gradient.
            labels: int64 `[n]`, index of the next token in that vocabulary, or -1.
            weights: `[n]`, at least 0; only ratios matter.
        """
        given = student, teacher, labels, weights, self
        value: Tensor = _Precomputed.apply(*given)  # type: ignore[no-untyped-call]
        return value

    def count(self, labels: Tensor, weights: Tensor) -> Tensor:
        """Return the `[n]` weight of each row."""
        return weights

    @abstractmethod
    def rows(
        self, student: Tensor, teacher: Tensor, labels: Tensor, gradient: bool
    ) -> tuple[Tensor, Tensor | None]:
        """Return `[m, c]` columns, averaged over the batch for `finish`, and `[m, v]` gradients."""
        ...

    def finish(self, means: Tensor) -> tuple[Tensor, Tensor | None]:
        """Return loss and gradient scale from the `[c]` column means."""
        return means[0], None

    def compute(
        self, student: Tensor, teacher: Tensor, labels: Tensor, weights: Tensor, gradient: bool
    ) -> tuple[Tensor, Tensor | None]:
        wide = torch.float64 if student.dtype == torch.float64 else torch.float32
        share = shares(self.count(labels, weights), wide)
        out = torch.empty_like(student) if gradient else None
        means: Tensor | None = None
        step = max(1, _CHUNK // student.shape[1])
        for begin in range(0, max(1, len(student)), step):
            part = slice(begin, begin + step)
            columns, pull = self.rows(student[part], teacher[part], labels[part], gradient)
            mine = share[part] @ columns.to(wide)
            means = mine if means is None else means + mine
            if out is not None and pull is not None:
                out[part] = pull.mul_(share[part, None])
        assert means is not None  # the range is never empty
        value, scale = self.finish(means)
        return value, out if out is None or scale is None else out.mul_(scale)


class _Precomputed(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, student: Tensor, teacher: Tensor, labels: Tensor, weights: Tensor, loss: Loss
    ) -> Tensor:
        value, gradient = loss.compute(student, teacher, labels, weights, ctx.needs_input_grad[0])
        ctx.save_for_backward(gradient)
        return value

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, upstream: Tensor) -> tuple[Tensor | None, ...]:
        (gradient,) = ctx.saved_tensors
        return (gradient if gradient is None else gradient * upstream), None, None, None, None


@dataclass(frozen=True)
class CrossEntropy(Loss):
    """-log q(label); rows without a label are left out of the mean."""

    name: ClassVar[str] = "cross-entropy"

    def count(self, labels: Tensor, weights: Tensor) -> Tensor:
        return weights * (labels >= 0)

    def rows(
        self, student: Tensor, teacher: Tensor, labels: Tensor, gradient: bool
    ) -> tuple[Tensor, Tensor | None]:
        log_q = log_probs(student)
        places = labels.clamp_min(0)[:, None]
        columns = -log_q.gather(1, places)
        if not gradient:
            return columns, None
        return columns, log_q.exp_().scatter_add_(1, places, -torch.ones_like(columns))


@dataclass(frozen=True, kw_only=True)
class Divergence(Loss):
    """Divergence between the distributions of teacher and student, row by row.

    Attributes:
        top: compare the teacher's top-k tokens, all others pooled to one event: a lower bound (data
            processing inequality). 0 for all tokens.
    """

    top: int = 0

    def __post_init__(self) -> None:
        require(self.top >= 0, "top", self.top, "0 (all tokens) or more")

    @abstractmethod
    def terms(self, log_p: Tensor, log_q: Tensor) -> tuple[Tensor, Tensor]:
        """Return `[m, c]` columns and `[m, k]` g of `[m, k]` log-probabilities."""
        ...

    def rows(
        self, student: Tensor, teacher: Tensor, labels: Tensor, gradient: bool
    ) -> tuple[Tensor, Tensor | None]:
        log_p, log_q = log_probs(teacher), log_probs(student)
        ids = top_k(log_p, self.top)
        log_k = pooled(log_q, ids)
        columns, g = self.terms(pooled(log_p, ids), log_k)
        if not gradient:
            return columns, None
        total = g.sum(1, keepdim=True)
        if ids is not None:  # the last event's g is shared out among its tokens as q is
            rest = (log_q - log_k[:, -1:]).exp_().mul_(g[:, -1:])
            g = rest.scatter_(1, ids, g[:, :-1])
        return columns, g - log_q.exp_().mul_(total)


@dataclass(frozen=True, kw_only=True)
class ForwardKL(Divergence):
    """KL(p || q), mass-covering (DistillSpec, arXiv:2310.08461)."""

    name: ClassVar[str] = "forward-kl"

    def rows(
        self, student: Tensor, teacher: Tensor, labels: Tensor, gradient: bool
    ) -> tuple[Tensor, Tensor | None]:
        if self.top:
            return super().rows(student, teacher, labels, gradient)
        # Over all tokens the gradient is q - p, and most training is this: half the passes.
        log_p, log_q = log_probs(teacher).clamp_min_(_NO_CHANCE), log_probs(student)
        p = log_p.exp()
        columns = torch.linalg.vecdot(p, log_p.sub_(log_q))[:, None]
        return columns, log_q.exp_().sub_(p) if gradient else None

    def terms(self, log_p: Tensor, log_q: Tensor) -> tuple[Tensor, Tensor]:
        return expectation(log_p, log_p - log_q)[:, None], -log_p.exp()


@dataclass(frozen=True, kw_only=True)
class ReverseKL(Divergence):
    """KL(q || p), mode-seeking. p must be above 0."""

    name: ClassVar[str] = "reverse-kl"

    def terms(self, log_p: Tensor, log_q: Tensor) -> tuple[Tensor, Tensor]:
        g = log_q.exp() * (log_q - log_p)
        return g.sum(1, keepdim=True), g


@dataclass(frozen=True, kw_only=True)
class JSD(Divergence):
    """Generalised Jensen-Shannon divergence (GKD, arXiv:2306.13649).

    beta KL(p || m) + (1 - beta) KL(q || m) with m = beta p + (1 - beta) q.
    """

    name: ClassVar[str] = "jsd"
    beta: float = 0.5

    def __post_init__(self) -> None:
        super().__post_init__()
        require(0 < self.beta < 1, "beta", self.beta, "between 0 and 1")

    def terms(self, log_p: Tensor, log_q: Tensor) -> tuple[Tensor, Tensor]:
        beta = self.beta
        log_m = torch.logaddexp(log(beta) + log_p, log1p(-beta) + log_q)  # finite where q > 0
        g = (1 - beta) * log_q.exp() * (log_q - log_m)
        value = beta * expectation(log_p, log_p - log_m) + g.sum(1)
        return value[:, None], g


@dataclass(frozen=True, kw_only=True)
class TVD(Divergence):
    """Total variation distance: one minus the acceptance probability of a drafted token.

    As the sum of max(0, p - q), whose gradient is -sum 1[p > q] grad q at ties too.
    """

    name: ClassVar[str] = "tvd"

    def terms(self, log_p: Tensor, log_q: Tensor) -> tuple[Tensor, Tensor]:
        p, q = log_p.exp(), log_q.exp()
        return functional.relu(p - q).sum(1, keepdim=True), -q * (p > q)


@dataclass(frozen=True, kw_only=True)
class TVDPlusPlus(Divergence):
    """TVD++, -E[A log q(x)] with x from q: TVD's gradient as policy gradient (arXiv:2403.00858).

    Reward r = 1[p > q]; A = (r - mean) / deviation over the batch. The expectation is exact, not
    sampled. The value is no measure of progress; read TVD for that.

    Attributes:
        advantage: "normalised" as above, or "reward" for A = r.
    """

    name: ClassVar[str] = "tvd++"
    advantage: Literal["normalised", "reward"] = "normalised"

    def terms(self, log_p: Tensor, log_q: Tensor) -> tuple[Tensor, Tensor]:
        q = log_q.exp()
        rewarded = q * (log_p.exp() > q)
        columns = [-(rewarded * log_q).sum(1), -(q * log_q).sum(1), rewarded.sum(1)]
        return torch.stack(columns, dim=1), -rewarded

    def finish(self, means: Tensor) -> tuple[Tensor, Tensor | None]:
        if self.advantage == "reward":
            return means[0], None
        rewarded, entropy, mean = means
        scale = 1 / deviation(mean)
        return (rewarded - mean * entropy) * scale, scale


_LOSSES: dict[str, type[Loss]] = {
    each.name: each for each in (CrossEntropy, ForwardKL, ReverseKL, JSD, TVD, TVDPlusPlus)
}


def find_loss(text: str) -> Loss:
    """Return the loss named `NAME` or `NAME:key=value`, such as "forward-kl" or "jsd:beta=0.9".

    Raises:
        InvalidOption: the loss or option is unknown, or a value is out of range.
    """
    named = parse(text, "loss")
    loss = _LOSSES.get(named.name)
    if loss is None:
        raise InvalidOption(f"loss {named.name!r} is unknown: use {', '.join(_LOSSES)}")
    return loss(**arguments(loss, "loss", named.options))
