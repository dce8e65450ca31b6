"""Trained prompt tokens (parallel prompt decoding) on disk: embeddings, accuracies, provenance."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from paceline.core.types import LogitArray, ProbArray
from paceline.errors import InvalidOption
from paceline.networks.weights import read_tensors, write_tensors

# Name in the metadata.
NETWORK = "ppd"


@dataclass(frozen=True, slots=True)
class PromptTokens:
    """Embeddings of prompt tokens, which make the target predict tokens further ahead.

    Attributes:
        embeddings: float32 `[m, hidden_size]`; index i predicts offset i + 1.
        accuracies: float64 `[m, ranks]`, probability on held-out text that, after i right guesses,
            the token of that rank at index i is right.
        metadata: provenance, as text; "model" is the fingerprint of the target's weights.
    """

    embeddings: LogitArray
    accuracies: ProbArray
    metadata: Mapping[str, str]


def save_prompt_tokens(path: Path, trained: PromptTokens) -> None:
    """Write prompt tokens atomically; raises InvalidOption if the file cannot be written."""
    tensors: dict[str, np.ndarray] = {
        "embeddings": trained.embeddings,
        "accuracies": trained.accuracies,
    }
    write_tensors(path, tensors, {**trained.metadata, "network": NETWORK})


def load_prompt_tokens(path: Path, model: str, width: int) -> PromptTokens:
    """Read prompt tokens of a target, by fingerprint and hidden size.

    Raises:
        InvalidOption: the file is missing, damaged, of another kind, or of another model.
    """
    tensors, metadata = read_tensors(path, "prompt tokens")
    if metadata.get("network") != NETWORK or tensors.keys() != {"embeddings", "accuracies"}:
        raise InvalidOption(
            f"{path} holds no prompt tokens: train some with `paceline train prompt-tokens`"
        )
    rows, shares = tensors["embeddings"], tensors["accuracies"]
    good = rows.ndim == shares.ndim == 2 and len(rows) == len(shares) > 0 and shares.shape[1] > 0
    if not good or not all(np.isfinite(each).all() for each in tensors.values()):
        raise InvalidOption(f"{path} holds impossible numbers: train it again")
    if shares.min() < 0 or shares.sum(axis=1).max() > 1 + 1e-6:
        raise InvalidOption(f"{path} holds shares that cannot be: train it again")
    if metadata.get("model") != model or rows.shape[1] != width:
        raise InvalidOption(
            f"{path} was trained for another model: train some with `paceline train prompt-tokens`"
        )
    return PromptTokens(rows.astype(np.float32), shares.astype(np.float64), metadata)
