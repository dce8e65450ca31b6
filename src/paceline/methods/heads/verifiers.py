"""Lossy verifiers with a trained linear head: weights, bias and provenance."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar, Self

import numpy as np

from paceline.core.options import arguments, require
from paceline.core.types import Distribution, LogitArray, Needs
from paceline.errors import InvalidOption, RuntimeUnavailable
from paceline.methods.relaxed_acceptance import RelaxedAcceptance, Round
from paceline.networks.weights import read_tensors, write_tensors
from paceline.verifiers.base import VerifierContext


@dataclass(frozen=True, slots=True)
class LinearHead:
    """Classifier sigmoid(weight . features + bias).

    `metadata` is provenance: "kind" names the rule, "model" the fingerprint of the target.
    """

    weight: LogitArray
    bias: float
    metadata: Mapping[str, str]

    def probability(self, features: LogitArray) -> float:
        """Return the trained class's probability for float32 `[features]`. Raises InvalidOption."""
        if features.shape != self.weight.shape:
            kind = self.metadata.get("kind", "linear")
            raise InvalidOption(
                f"the {kind} head takes {len(self.weight)} features and this model gives "
                f"{len(features)}: {_advice(kind)}"
            )
        score = float(self.weight @ features) + self.bias
        return 1 / (1 + math.exp(-score)) if score > -700 else 0.0

    def check_model(self, context: VerifierContext) -> None:
        """Raise InvalidOption unless the head was trained for the target's weights."""
        if self.metadata.get("model") != context.model:
            kind = self.metadata.get("kind", "linear")
            raise InvalidOption(f"the {kind} head was trained for another model: {_advice(kind)}")


def save_head(path: Path, head: LinearHead) -> None:
    """Write a head atomically. InvalidOption: the file cannot be written."""
    tensors = {"weight": head.weight, "bias": np.array([head.bias], dtype=np.float32)}
    write_tensors(path, tensors, head.metadata)


def load_head(kind: str, path: str) -> LinearHead:
    """Load a head from `path`. Raises InvalidOption: no path, or no such head there."""
    if not path:
        raise InvalidOption(f"verifier '{kind}' needs a head: {_advice(kind)}")
    tensors, metadata = read_tensors(Path(path), f"{kind} head", _advice(kind))
    none = np.zeros(0, dtype=np.float32)
    weight, bias = tensors.get("weight", none), tensors.get("bias", none)
    if metadata.get("kind") != kind or weight.ndim != 1 or bias.shape != (1,):
        raise InvalidOption(f"{path} holds no {kind} head: {_advice(kind)}")
    return LinearHead(weight.astype(np.float32), float(bias[0]), metadata)


def _advice(kind: str) -> str:
    return f"train one with `paceline train {kind}` and use verifier '{kind}:head=FILE'"


class Headed(RelaxedAcceptance):
    """Accept drafts of every kind, from targets that give hidden states."""

    needs: ClassVar[Needs] = Needs(hidden=True)

    def __init__(self, threshold: float = 0.5, head: str = "") -> None:
        """Set the threshold, and load the head from the file `head`.

        Raises:
            InvalidOption: the threshold is out of [0, 1], or no head of this rule is given.
        """
        require(0 <= threshold <= 1, "threshold", threshold, "in [0, 1]")
        self.threshold = threshold
        self.head = load_head(self.name, head)

    @classmethod
    def create(cls, context: VerifierContext) -> Self:
        """Build the rule. RuntimeUnavailable: no hidden states. InvalidOption: foreign head."""
        rule = cls(**arguments(cls, "verifier", context.options))
        if not context.target.hidden_states:
            raise RuntimeUnavailable(
                f"verifier '{cls.name}' reads hidden states, which runtime "
                f"'{context.target.runtime}' does not give: use runtime cpu or torch"
            )
        rule.head.check_model(context)
        return rule


class Judge(Headed):
    """Relaxed acceptance of mismatches that the head finds acceptable."""

    name: ClassVar[str] = "judge"
    guarantee = "lossy: accepts what a trained head finds acceptable"
    requires = "hidden states; a head for the model (paceline train judge): judge:head=FILE"
    paper = "after Judge Decoding, Bachmann et al. 2025, arXiv:2501.19309"

    def relaxes(self, step: Round, node: int, child: int, depth: int) -> bool:
        return self.head.probability(step.target.hidden(child)) > self.threshold


# Probabilities are read as at least this, so that their logarithms stay finite.
_LEAST = 1e-12


def features(
    distribution: Distribution, unsure: float, own: int, token: int, hidden: LogitArray
) -> LogitArray:
    """Return float32 `[4 + hidden_size]`, the classifier's features of a mismatch.

    Args:
        distribution: the target's (soft) distribution where the mismatch stands.
        unsure: its entropy in nats.
        own: the target's own token there.
        token: the drafted token.
        hidden: float32 `[hidden_size]`, the target's final hidden state at the drafted token.
    """
    p = max(distribution.prob(token), _LEAST)
    rank = int((distribution.probs > distribution.prob(token)).sum())
    scalars = (np.log(p), np.log(max(distribution.prob(own), _LEAST) / p), unsure, np.log1p(rank))
    return np.concatenate([np.array(scalars, dtype=np.float32), hidden])


class Pivot(Headed):
    """Relaxed acceptance of mismatches that the head finds harmless."""

    name: ClassVar[str] = "pivot"
    guarantee = "lossy: accepts what a trained head finds harmless"
    requires = "hidden states; a head for the model (paceline train pivot): pivot:head=FILE"
    paper = "after PAD, Ziashahabi et al. 2025, arXiv:2511.00351"

    def relaxes(self, step: Round, node: int, child: int, depth: int) -> bool:
        distribution, token = step.target.soft(node), int(step.draft.tokens[child])
        own, hidden = step.own(node, depth), step.target.hidden(child)
        seen = features(distribution, step.entropy(node), own, token, hidden)
        return self.head.probability(seen) < self.threshold
