"""Losses of `paceline.lab.training.losses` written down plainly, with gradients by autograd."""

from __future__ import annotations

from math import log, log1p

import torch
from torch import Tensor
from torch.nn import functional

from paceline.lab.training.losses import (
    JSD,
    TVD,
    CrossEntropy,
    Divergence,
    ForwardKL,
    Loss,
    ReverseKL,
    TVDPlusPlus,
    deviation,
    expectation,
    log_probs,
    pooled,
    top_k,
    weighted_mean,
)


def reference_loss(
    loss: Loss, student: Tensor, teacher: Tensor, labels: Tensor, weights: Tensor
) -> Tensor:
    """Return the value of a loss, as its definition says."""
    if isinstance(loss, CrossEntropy):
        picked = log_probs(student).gather(1, labels.clamp_min(0)[:, None])[:, 0]
        return weighted_mean(-picked, weights * (labels >= 0))
    assert isinstance(loss, Divergence)
    log_p, log_q = log_probs(teacher.detach()), log_probs(student)
    ids = top_k(log_p, loss.top)
    log_p, log_q = pooled(log_p, ids), pooled(log_q, ids)
    if isinstance(loss, TVDPlusPlus):
        q = log_q.detach().exp()
        advantage = (log_p.exp() > q).to(q.dtype)
        if loss.advantage == "normalised":
            mean = weighted_mean((q * advantage).sum(1), weights)
            advantage = (advantage - mean) / deviation(mean)
        return weighted_mean(-(q * advantage * log_q).sum(1), weights)
    return weighted_mean(_divergences(loss, log_p, log_q), weights)


def _divergences(loss: Divergence, log_p: Tensor, log_q: Tensor) -> Tensor:
    if isinstance(loss, ForwardKL):
        return expectation(log_p, log_p - log_q)
    if isinstance(loss, ReverseKL):
        return (log_q.exp() * (log_q - log_p)).sum(1)
    if isinstance(loss, JSD):
        log_m = torch.logaddexp(log(loss.beta) + log_p, log1p(-loss.beta) + log_q)
        teacher = expectation(log_p, log_p - log_m)
        return loss.beta * teacher + (1 - loss.beta) * (log_q.exp() * (log_q - log_m)).sum(1)
    assert isinstance(loss, TVD)
    return functional.relu(log_p.exp() - log_q.exp()).sum(1)
