"""Linear heads of trained rules: weights, bias and provenance."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from importlib.resources import as_file, files
from pathlib import Path

import numpy as np

from paceline.errors import InvalidOption
from paceline.models.whole_file import whole_file
from paceline.types import LogitArray
from paceline.verifiers.context import VerifierContext

_SHIPPED = "paceline.weights"


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


def load_head(kind: str, path: str = "") -> LinearHead:
    """Load a head from `path`, or the one that ships. Raises InvalidOption."""
    if path:
        return _read(kind, Path(path))
    with as_file(files(_SHIPPED) / f"{kind}-smollm2-135m.safetensors") as shipped:
        return _read(kind, shipped)


def save_head(path: Path, head: LinearHead) -> None:
    """Write a head atomically. InvalidOption: the file cannot be written."""
    from safetensors.numpy import save

    tensors = {"weight": head.weight, "bias": np.array([head.bias], dtype=np.float32)}
    try:
        with whole_file(path) as part:
            part.write_bytes(save(tensors, metadata=dict(head.metadata)))
    except OSError as error:
        reason = error.strerror or error
        raise InvalidOption(f"cannot write {path} ({reason}): give another --out") from error


def _read(kind: str, path: Path) -> LinearHead:
    from safetensors import SafetensorError, safe_open

    try:
        with safe_open(path, framework="numpy") as file:
            metadata = dict(file.metadata() or {})
            weight, bias = file.get_tensor("weight"), file.get_tensor("bias")
    except (OSError, SafetensorError) as error:
        reason = getattr(error, "strerror", None) or error
        raise InvalidOption(f"{path} holds no {kind} head ({reason}): {_advice(kind)}") from error
    if metadata.get("kind") != kind or weight.ndim != 1 or bias.shape != (1,):
        raise InvalidOption(f"{path} holds no {kind} head: {_advice(kind)}")
    return LinearHead(weight.astype(np.float32), float(bias[0]), metadata)


def _advice(kind: str) -> str:
    return f"train one with `paceline train {kind}` and use verifier '{kind}:head=FILE'"
