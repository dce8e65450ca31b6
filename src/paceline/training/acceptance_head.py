"""What a head that predicts acceptance is trained on (SpecDec++, arXiv:2405.19715).

The head reads the drafter's last hidden state at a drafted token and says how likely the target is
to accept it; drafting stops once some token of the draft is likely to be rejected. Training text is
the target's, with some tokens replaced by the drafter's own, and only those teach.
"""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional

from paceline.options import require
from paceline.training.logits import log_probs, weighted_mean
from paceline.types import BoolArray, IntArray


def mix_tokens(
    text: IntArray, drafted: IntArray, share: float, generator: np.random.Generator
) -> tuple[IntArray, BoolArray]:
    """Replace a share of a text by what the drafter would have written there.

    Args:
        text: int64 `[n]`, written by the target.
        drafted: int64 `[n]`, the drafter's token at each position given the text before it.
        share: chance of each token to be replaced, in [0, 1]; 0.15 in the paper.
        generator: draws which.

    Returns:
        int64 `[n]` tokens, and bool `[n]`, which of them are the drafter's.

    Raises:
        InvalidOption: the share is out of range.
    """
    require(0 <= share <= 1, "share of drafted tokens", share, "in [0, 1]")
    chosen = generator.random(len(text)) < share
    return np.where(chosen, drafted, text), chosen


def acceptance_labels(target: Tensor, drafter: Tensor, tokens: Tensor) -> Tensor:
    """min(1, p(x) / q(x)): the probability that rejection sampling accepts each token.

    Args:
        target: `[n, v]` logits of the target before each token.
        drafter: `[n, v]` logits of the drafter before each token.
        tokens: int64 `[n]`.

    Returns:
        float32 (float64 for float64 logits) `[n]`, without gradient.
    """
    with torch.no_grad():
        ratio = log_probs(target) - log_probs(drafter)
        return ratio.gather(1, tokens[:, None])[:, 0].clamp_max(0).exp()


def acceptance_loss(
    scores: Tensor, labels: Tensor, drafted: Tensor, rejection: float = 6.0
) -> Tensor:
    """Mean over drafted tokens of -y log s - w (1 - y) log(1 - s), s the sigmoid of a score.

    A token that is wrongly trusted costs more than one that is wrongly doubted, so w is above 1,
    and the best s is then below y: `drafters.acceptance.unweighted` turns one
    into the other.

    Args:
        scores: `[n]`, the head's; of a head with two outputs, their difference.
        labels: `[n]` in [0, 1], from `acceptance_labels`.
        drafted: bool `[n]`, the tokens that teach; the loss is 0 if there are none.
        rejection: w; 6 in the paper.

    Returns:
        A scalar, in nats.

    Raises:
        InvalidOption: w is not above 0.
    """
    require(rejection > 0, "rejection weight", rejection, "above 0")
    accepted = labels * functional.softplus(-scores)
    rejected = rejection * (1 - labels) * functional.softplus(scores)
    return weighted_mean(accepted + rejected, drafted)
