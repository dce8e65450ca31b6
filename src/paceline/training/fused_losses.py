"""The losses of `paceline.training.losses` in one pass over the logits and with less memory.

Every loss is a scalar, so its gradient with respect to the student's logits is known up to a
factor as soon as its value is. Both are computed together, some rows at a time; what is kept for
the backward pass is that gradient alone, one tensor in the size and type of the student's logits.
A second derivative is not offered.

With D the loss of a row and g = q * dD/dq, the gradient is g - q * sum(g): the derivative of the
softmax. Each divergence states its g, up to a multiple of q, which cancels.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from paceline.training.logits import deviation, expectation, likeliest, log_probs, pooled, shares
from paceline.training.losses import (
    JSD,
    TVD,
    CrossEntropy,
    ForwardKL,
    Loss,
    ReverseKL,
    TVDPlusPlus,
)

_CHUNK = 1 << 20
"""Logits that are worked on together: enough for a GPU, and few enough for a CPU's cache."""

_NO_CHANCE = -1e30
"""Stands for the log-probability of what cannot come: 0 times it is 0."""


def fused(loss: Loss, chunk: int = _CHUNK) -> Loss:
    """The same loss in one pass.

    Args:
        loss: from `paceline.training.losses`.
        chunk: most logits worked on at a time (at least one row is).
    """
    return _FUSED[type(loss)](loss, chunk)


@dataclass(frozen=True)
class _Fused(Loss):
    """A loss that knows its own gradient.

    `columns` of a chunk are means of rows; `finish` makes the loss and the gradient's scale of
    their averages over the batch.
    """

    name: ClassVar[str] = "fused"
    loss: Any
    chunk: int

    def __call__(self, student: Tensor, teacher: Tensor, labels: Tensor, weights: Tensor) -> Tensor:
        given = student, teacher, labels, weights, self
        value: Tensor = _Precomputed.apply(*given)  # type: ignore[no-untyped-call]
        return value

    def count(self, labels: Tensor, weights: Tensor) -> Tensor:
        """`[n]`, how much each row counts."""
        return weights

    @abstractmethod
    def rows(
        self, student: Tensor, teacher: Tensor, labels: Tensor, gradient: bool
    ) -> tuple[Tensor, Tensor | None]:
        """`[m, c]` columns of some rows, and `[m, v]` gradients where they are wanted."""
        ...

    def finish(self, means: Tensor) -> tuple[Tensor, Tensor | None]:
        """The loss, and what the gradient is multiplied by, from the columns' `[c]` means."""
        return means[0], None

    def compute(
        self, student: Tensor, teacher: Tensor, labels: Tensor, weights: Tensor, gradient: bool
    ) -> tuple[Tensor, Tensor | None]:
        """The loss and, where it is wanted, its gradient, `[n, v]` in the student's type."""
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
    """Hands out a gradient that was computed with the value."""

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
        """`[m, c]` columns and `[m, k]` g of `[m, k]` log-probabilities."""
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
    """The advantage needs the whole batch, so what it is made of is averaged in the same pass."""

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
