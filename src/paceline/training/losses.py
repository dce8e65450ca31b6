"""Distillation losses between teacher p (target) and student q (drafter): reference and fused.

A fused loss computes its gradient with its value, a chunk of rows at a time, and saves that alone
for backward; no second derivative. With g = q * dD/dq (up to a multiple of q), the gradient is
g - q * sum(g), the softmax derivative.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from math import inf, log, log1p
from typing import Any, ClassVar, Literal

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable
from torch.nn import functional

from paceline.core.options import arguments, require, split_options
from paceline.errors import InvalidOption

# What losses are made of:

# Avoids division by 0 where all rewards are equal.
_LEAST_DEVIATION = 1e-6

# Avoids division by 0 where all weights are 0.
_LEAST_SUM = 1e-30


def log_probs(logits: Tensor) -> Tensor:
    """Return `[n, v]` log-probabilities in nats: float64 for float64 logits, else float32."""
    wide = logits.dtype if logits.dtype == torch.float64 else torch.float32
    return functional.log_softmax(logits, dim=1, dtype=wide)


def likeliest(log_p: Tensor, top: int) -> Tensor | None:
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

    @abstractmethod
    def __call__(self, student: Tensor, teacher: Tensor, labels: Tensor, weights: Tensor) -> Tensor:
        """Return the weighted mean over rows, in nats for entropies; 0 if no row counts.

        Args:
            student: `[n, v]` finite logits. Computed in float32, or float64 if given so.
            teacher: `[n, v]` logits over the same (draft) vocabulary; no gradient.
            labels: int64 `[n]`, index of the next token in that vocabulary, or -1.
            weights: `[n]`, at least 0; only ratios matter.
        """
        ...


@dataclass(frozen=True)
class CrossEntropy(Loss):
    """-log q(label); rows without a label are left out of the mean."""

    name: ClassVar[str] = "cross-entropy"

    def __call__(self, student: Tensor, teacher: Tensor, labels: Tensor, weights: Tensor) -> Tensor:
        labelled = labels >= 0
        picked = log_probs(student).gather(1, labels.clamp_min(0)[:, None])[:, 0]
        return weighted_mean(-picked, weights * labelled)


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

    def __call__(self, student: Tensor, teacher: Tensor, labels: Tensor, weights: Tensor) -> Tensor:
        log_p, log_q = log_probs(teacher.detach()), log_probs(student)
        ids = likeliest(log_p, self.top)
        return weighted_mean(self.rows(pooled(log_p, ids), pooled(log_q, ids)), weights)

    @abstractmethod
    def rows(self, log_p: Tensor, log_q: Tensor) -> Tensor:
        """Return `[n]` divergences of `[n, k]` log-probabilities."""
        ...


@dataclass(frozen=True, kw_only=True)
class ForwardKL(Divergence):
    """KL(p || q), mass-covering (DistillSpec, arXiv:2310.08461)."""

    name: ClassVar[str] = "forward-kl"

    def rows(self, log_p: Tensor, log_q: Tensor) -> Tensor:
        return expectation(log_p, log_p - log_q)


@dataclass(frozen=True, kw_only=True)
class ReverseKL(Divergence):
    """KL(q || p), mode-seeking. p must be above 0."""

    name: ClassVar[str] = "reverse-kl"

    def rows(self, log_p: Tensor, log_q: Tensor) -> Tensor:
        return (log_q.exp() * (log_q - log_p)).sum(1)


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

    def rows(self, log_p: Tensor, log_q: Tensor) -> Tensor:
        log_m = self.log_mixture(log_p, log_q)
        teacher = expectation(log_p, log_p - log_m)
        return self.beta * teacher + (1 - self.beta) * (log_q.exp() * (log_q - log_m)).sum(1)

    def log_mixture(self, log_p: Tensor, log_q: Tensor) -> Tensor:
        """Return log m, finite wherever q is not 0."""
        return torch.logaddexp(log(self.beta) + log_p, log1p(-self.beta) + log_q)


@dataclass(frozen=True, kw_only=True)
class TVD(Divergence):
    """Total variation distance: one minus the acceptance probability of a drafted token.

    As the sum of max(0, p - q), whose gradient is -sum 1[p > q] grad q at ties too.
    """

    name: ClassVar[str] = "tvd"

    def rows(self, log_p: Tensor, log_q: Tensor) -> Tensor:
        return functional.relu(log_p.exp() - log_q.exp()).sum(1)


@dataclass(frozen=True, kw_only=True)
class TVDPlusPlus(Loss):
    """TVD++, -E[A log q(x)] with x from q: TVD's gradient as policy gradient (arXiv:2403.00858).

    Reward r = 1[p > q]; A = (r - mean) / deviation over the batch. The expectation is exact, not
    sampled. The value is no measure of progress; read TVD for that.

    Attributes:
        advantage: "normalised" as above, or "reward" for A = r.
        top: as in `Divergence`.
    """

    name: ClassVar[str] = "tvd++"
    advantage: Literal["normalised", "reward"] = "normalised"
    top: int = 0

    def __post_init__(self) -> None:
        require(self.top >= 0, "top", self.top, "0 (all tokens) or more")

    def __call__(self, student: Tensor, teacher: Tensor, labels: Tensor, weights: Tensor) -> Tensor:
        log_p, log_q = log_probs(teacher.detach()), log_probs(student)
        ids = likeliest(log_p, self.top)
        log_p, log_q = pooled(log_p, ids), pooled(log_q, ids)
        q = log_q.detach().exp()
        advantage = (log_p.exp() > q).to(q.dtype)
        if self.advantage == "normalised":
            mean = weighted_mean((q * advantage).sum(1), weights)
            advantage = (advantage - mean) / deviation(mean)
        return weighted_mean(-(q * advantage * log_q).sum(1), weights)


_LOSSES: dict[str, type[Loss]] = {
    each.name: each for each in (CrossEntropy, ForwardKL, ReverseKL, JSD, TVD, TVDPlusPlus)
}


def find_loss(text: str) -> Loss:
    """Return the loss named `NAME` or `NAME:key=value`, such as "forward-kl" or "jsd:beta=0.9".

    Raises:
        InvalidOption: the loss or option is unknown, or a value is out of range.
    """
    name, options = split_options(text, "loss")
    if name not in _LOSSES:
        raise InvalidOption(f"loss {name!r} is unknown: use {', '.join(_LOSSES)}")
    return _LOSSES[name](**arguments(_LOSSES[name], "loss", options))


# The losses of `paceline.training.losses` in one pass over the logits and with less memory.

# Logits per chunk: enough for a GPU, few enough for a CPU's cache.
_CHUNK = 1 << 20

# Log-probability of impossible tokens: 0 times it is 0.
_NO_CHANCE = -1e30


def fused(loss: Loss, chunk: int = _CHUNK) -> Loss:
    """Return the fused form of a loss; `chunk` is the most logits per chunk (at least one row)."""
    return _FUSED[type(loss)](loss, chunk)


@dataclass(frozen=True)
class _Fused(Loss):
    name: ClassVar[str] = "fused"
    loss: Any
    chunk: int

    def __call__(self, student: Tensor, teacher: Tensor, labels: Tensor, weights: Tensor) -> Tensor:
        given = student, teacher, labels, weights, self
        value: Tensor = _Precomputed.apply(*given)  # type: ignore[no-untyped-call]
        return value

    def count(self, labels: Tensor, weights: Tensor) -> Tensor:
        # `[n]` weight of each row.
        return weights

    @abstractmethod
    def rows(
        self, student: Tensor, teacher: Tensor, labels: Tensor, gradient: bool
    ) -> tuple[Tensor, Tensor | None]:
        # `[m, c]` columns, averaged over the batch for `finish`, and `[m, v]` gradients.
        ...

    def finish(self, means: Tensor) -> tuple[Tensor, Tensor | None]:
        # Loss and gradient scale from the `[c]` column means.
        return means[0], None

    def compute(
        self, student: Tensor, teacher: Tensor, labels: Tensor, weights: Tensor, gradient: bool
    ) -> tuple[Tensor, Tensor | None]:
        wide = torch.float64 if student.dtype == torch.float64 else torch.float32
        share = shares(self.count(labels, weights), wide)
        out = torch.empty_like(student) if gradient else None
        means: Tensor | None = None
        step = max(1, self.chunk // student.shape[1])
        for begin in range(0, max(1, len(student)), step):
            part = slice(begin, begin + step)
            columns, pull = self.rows(student[part], teacher[part], labels[part], gradient)
            mine = share[part] @ columns
            means = mine if means is None else means + mine
            if out is not None and pull is not None:
                out[part] = pull.mul_(share[part, None])
        assert means is not None  # the range is never empty
        value, scale = self.finish(means)
        return value, out if out is None or scale is None else out.mul_(scale)


class _Precomputed(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, student: Tensor, teacher: Tensor, labels: Tensor, weights: Tensor, loss: _Fused
    ) -> Tensor:
        value, gradient = loss.compute(student, teacher, labels, weights, ctx.needs_input_grad[0])
        ctx.save_for_backward(gradient)
        return value

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, upstream: Tensor) -> tuple[Tensor | None, ...]:
        (gradient,) = ctx.saved_tensors
        return (gradient if gradient is None else gradient * upstream), None, None, None, None


class _FusedCrossEntropy(_Fused):
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


class _FusedDivergence(_Fused):
    @abstractmethod
    def terms(self, log_p: Tensor, log_q: Tensor) -> tuple[Tensor, Tensor]:
        # `[m, c]` columns and `[m, k]` g of `[m, k]` log-probabilities.
        ...

    def rows(
        self, student: Tensor, teacher: Tensor, labels: Tensor, gradient: bool
    ) -> tuple[Tensor, Tensor | None]:
        log_p, log_q = log_probs(teacher), log_probs(student)
        ids = likeliest(log_p, self.loss.top)
        log_k = pooled(log_q, ids)
        columns, g = self.terms(pooled(log_p, ids), log_k)
        if not gradient:
            return columns, None
        total = g.sum(1, keepdim=True)
        if ids is not None:  # the last event's g is shared out among its tokens as q is
            rest = (log_q - log_k[:, -1:]).exp_().mul_(g[:, -1:])
            g = rest.scatter_(1, ids, g[:, :-1])
        return columns, g - log_q.exp_().mul_(total)


class _FusedForwardKL(_FusedDivergence):
    def rows(
        self, student: Tensor, teacher: Tensor, labels: Tensor, gradient: bool
    ) -> tuple[Tensor, Tensor | None]:
        if self.loss.top:
            return super().rows(student, teacher, labels, gradient)
        # Over all tokens the gradient is q - p, and most training is this: half the passes.
        log_p, log_q = log_probs(teacher).clamp_min_(_NO_CHANCE), log_probs(student)
        p = log_p.exp()
        columns = torch.linalg.vecdot(p, log_p.sub_(log_q))[:, None]
        return columns, log_q.exp_().sub_(p) if gradient else None

    def terms(self, log_p: Tensor, log_q: Tensor) -> tuple[Tensor, Tensor]:
        return self.loss.rows(log_p, log_q)[:, None], -log_p.exp()


class _FusedReverseKL(_FusedDivergence):
    def terms(self, log_p: Tensor, log_q: Tensor) -> tuple[Tensor, Tensor]:
        g = log_q.exp() * (log_q - log_p)
        return g.sum(1, keepdim=True), g


class _FusedJSD(_FusedDivergence):
    def terms(self, log_p: Tensor, log_q: Tensor) -> tuple[Tensor, Tensor]:
        beta, log_m = self.loss.beta, self.loss.log_mixture(log_p, log_q)
        g = (1 - beta) * log_q.exp() * (log_q - log_m)
        value = beta * expectation(log_p, log_p - log_m) + g.sum(1)
        return value[:, None], g


class _FusedTVD(_FusedDivergence):
    def terms(self, log_p: Tensor, log_q: Tensor) -> tuple[Tensor, Tensor]:
        q = log_q.exp()
        return self.loss.rows(log_p, log_q)[:, None], -q * (log_p.exp() > q)


class _FusedTVDPlusPlus(_FusedDivergence):
    # The advantage needs statistics of the whole batch: they are averaged in the same pass.

    def terms(self, log_p: Tensor, log_q: Tensor) -> tuple[Tensor, Tensor]:
        q = log_q.exp()
        rewarded = q * (log_p.exp() > q)
        columns = [-(rewarded * log_q).sum(1), -(q * log_q).sum(1), rewarded.sum(1)]
        return torch.stack(columns, dim=1), -rewarded

    def finish(self, means: Tensor) -> tuple[Tensor, Tensor | None]:
        if self.loss.advantage == "reward":
            return means[0], None
        rewarded, entropy, mean = means
        scale = 1 / deviation(mean)
        return (rewarded - mean * entropy) * scale, scale


_FUSED: dict[type[Loss], Callable[[Loss, int], Loss]] = {
    CrossEntropy: _FusedCrossEntropy,
    ForwardKL: _FusedForwardKL,
    ReverseKL: _FusedReverseKL,
    JSD: _FusedJSD,
    TVD: _FusedTVD,
    TVDPlusPlus: _FusedTVDPlusPlus,
}
