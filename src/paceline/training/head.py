"""From labelled mismatches to a head that a verifier loads, and figures on held-out prompts."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import replace

import numpy as np

from paceline.errors import InvalidOption
from paceline.training.fit import fit_logistic
from paceline.training.labels import Kind
from paceline.training.quality import Quality, judge_quality
from paceline.types import IntArray, LogitArray, ProbArray
from paceline.verifiers.heads import LinearHead


def train_head(
    kind: Kind,
    features: LogitArray,
    losses: ProbArray,
    prompts: IntArray,
    *,
    hidden_size: int,
    margin: float,
    cost: float,
    penalty: float,
    held_out: float,
    seed: int,
    metadata: Mapping[str, str],
) -> tuple[LinearHead, Quality]:
    """Fit a head on some prompts and judge it on the others.

    Args:
        kind: "judge" finds losses of at most `margin` on the hidden state alone; "pivot" finds
            larger ones on all features.
        features: float32 `[n, 4 + hidden_size]`, log-probability first and hidden state last.
        losses: float64 `[n]`.
        prompts: int64 `[n]`, which prompt each example comes from; prompts are never split.
        hidden_size: width of the hidden state.
        margin: what divides the classes.
        cost: how much more a mismatch counts that should not pass than one that should.
        penalty: L2, see `fit_logistic`.
        held_out: share of the prompts to judge on, in (0, 1).
        seed: chooses them.
        metadata: provenance to store with the head.

    Raises:
        InvalidOption: a part has examples of one class alone.
    """
    labels = losses <= margin if kind == "judge" else losses > margin
    inputs = features[:, -hidden_size:] if kind == "judge" else features
    names = np.random.default_rng(seed).permutation(np.unique(prompts))
    apart = np.isin(prompts, names[: max(1, round(held_out * len(names)))])
    for rows in (apart, ~apart):
        if not labels[rows].any() or labels[rows].all():
            raise InvalidOption(
                f"all of {int(rows.sum())} examples are of one class: give more prompts, or "
                f"another --margin than {margin}"
            )
    weights = np.where(losses > margin, cost, 1.0)
    weight, bias = fit_logistic(inputs[~apart], labels[~apart], weights[~apart], penalty)
    head = LinearHead(weight, bias, {**metadata, "kind": kind})
    scores = np.array([head.probability(row) for row in inputs[apart]])
    sign = 1.0 if kind == "judge" else -1.0
    signed = sign * features[apart, 0].astype(np.float64)
    quality = judge_quality(scores, labels[apart], signed, prompts[apart])
    figures = {"margin": str(margin), "held_out": json.dumps(quality.as_dict())}
    return replace(head, metadata={**head.metadata, **figures}), quality
