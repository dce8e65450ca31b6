"""Losses of drafter training, each written as its definition.

The target is the teacher, p, and the drafter is the student, q. `paceline.training.fused_losses`
computes the same values and gradients in one pass and with less memory; these are what it is
tested against.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from math import log, log1p
from typing import ClassVar, Literal

import torch
from torch import Tensor
from torch.nn import functional

from paceline.errors import InvalidOption
from paceline.options import arguments, require, split_options
from paceline.training.logits import (
    deviation,
    expectation,
    likeliest,
    log_probs,
    pooled,
    weighted_mean,
)


class Loss(ABC):
    """A number that falls as the student comes to agree with the teacher."""

    name: ClassVar[str]

    @abstractmethod
    def __call__(self, student: Tensor, teacher: Tensor, labels: Tensor, weights: Tensor) -> Tensor:
        """The weighted mean over rows; 0 if no row counts.

        Args:
            student: `[n, v]` logits, finite. Computed in float32, or in float64 if given so.
            teacher: `[n, v]` logits over the same, maybe trimmed, vocabulary; no gradient.
            labels: int64 `[n]`, the next token's index in that vocabulary, -1 where it has none.
            weights: `[n]`, how much each row counts; at least 0, and only their ratios matter.

        Returns:
            A scalar, in nats for the entropies.
        """
        ...


@dataclass(frozen=True)
class CrossEntropy(Loss):
    """-log q(label). Rows without a label count for nothing, in the mean's denominator too."""

    name: ClassVar[str] = "cross-entropy"

    def __call__(self, student: Tensor, teacher: Tensor, labels: Tensor, weights: Tensor) -> Tensor:
        labelled = labels >= 0
        picked = log_probs(student).gather(1, labels.clamp_min(0)[:, None])[:, 0]
        return weighted_mean(-picked, weights * labelled)


@dataclass(frozen=True, kw_only=True)
class Divergence(Loss):
    """How far the student's law is from the teacher's, row by row.

    Attributes:
        top: compare the teacher's so many likeliest tokens alone, all others together as one
            event: a lower bound of the divergence, by the data processing inequality. 0 for all.
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
        """`[n]` divergences of `[n, k]` log-probabilities."""
        ...


@dataclass(frozen=True, kw_only=True)
class ForwardKL(Divergence):
    """KL(p || q): the student covers all that the teacher may say (arXiv:2310.08461)."""

    name: ClassVar[str] = "forward-kl"

    def rows(self, log_p: Tensor, log_q: Tensor) -> Tensor:
        return expectation(log_p, log_p - log_q)


@dataclass(frozen=True, kw_only=True)
class ReverseKL(Divergence):
    """KL(q || p): the student keeps to what the teacher may say. p must be above 0."""

    name: ClassVar[str] = "reverse-kl"

    def rows(self, log_p: Tensor, log_q: Tensor) -> Tensor:
        return (log_q.exp() * (log_q - log_p)).sum(1)


@dataclass(frozen=True, kw_only=True)
class JSD(Divergence):
    """beta KL(p || m) + (1 - beta) KL(q || m) with m = beta p + (1 - beta) q.

    The generalised Jensen-Shannon divergence (Agarwal et al. 2024, arXiv:2306.13649). Divided by
    beta it tends to the forward KL as beta tends to 0; by 1 - beta, to the reverse as it tends to
    1. Online speculative decoding (arXiv:2310.07177) also takes 0.9.
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
        """log m, finite wherever q is not 0."""
        return torch.logaddexp(log(self.beta) + log_p, log1p(-self.beta) + log_q)


@dataclass(frozen=True, kw_only=True)
class TVD(Divergence):
    """Half the sum of |p - q|: one minus the acceptance of a single drafted token.

    Written as the sum of max(0, p - q), whose gradient is -sum 1[p > q] grad q at ties too.
    """

    name: ClassVar[str] = "tvd"

    def rows(self, log_p: Tensor, log_q: Tensor) -> Tensor:
        return functional.relu(log_p.exp() - log_q.exp()).sum(1)


@dataclass(frozen=True, kw_only=True)
class TVDPlusPlus(Loss):
    """-E[A log q(x)], x from q: TVD's gradient as a policy gradient (arXiv:2403.00858).

    The reward r is 1 where p > q and 0 elsewhere, and A = (r - mean) / deviation over the whole
    batch, x drawn from q at every row. The expectation is summed exactly over the vocabulary, not
    sampled; the mean then cancels, since E[grad log q] is 0, and the gradient is TVD's divided by
    the batch's deviation of r. The value is no measure of progress: read TVD for that.

    Attributes:
        advantage: "normalised" as above, or "reward" for A = r, whose gradient is that of TVD.
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
    """The loss that `NAME` or `NAME:key=value` names, such as "forward-kl" or "jsd:beta=0.9".

    Raises:
        InvalidOption: there is no such loss or option, or a value is out of range.
    """
    name, options = split_options(text, "loss")
    if name not in _LOSSES:
        raise InvalidOption(f"loss {name!r} is unknown: use {', '.join(_LOSSES)}")
    return _LOSSES[name](**arguments(_LOSSES[name], "loss", options))
