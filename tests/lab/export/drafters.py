"""A tiny target on disk and drafters for it, with random weights in all places."""

from __future__ import annotations

from pathlib import Path

import numpy as np
from tests.helpers import tiny_model as tiny

from paceline.models.source import DirectorySource
from paceline.networks.base import Network
from paceline.networks.catalogue import build
from paceline.networks.weights import Trained, save_network

LAYERS = 8


def target(path: Path, family: tiny.Family = "qwen3", layers: int = LAYERS) -> DirectorySource:
    """Heads of qwen3 are wider together than the width."""
    return DirectorySource(tiny.save_directory(path, tiny.tiny_config(family, layers=layers)))


def network(name: str, source: DirectorySource) -> Network:
    settings = {
        "eagle3": {"steps": 3, "ffn_size": 40},
        "medusa": {"width": 3},
        "draft-lm": {"layers": 2},
        "s2d": {"layers": 2},
    }
    return build(name, source.config, settings.get(name, {}))


def save(path: Path, net: Network, model: str, vocabulary: int = 200) -> Path:
    """Weights that no training ever reached: no norm is one, no residual part is zero."""
    rng = np.random.default_rng(7)
    parameters = {
        name: rng.normal(0.7 if len(shape) == 1 else 0.0, 0.3, shape).astype(np.float32)
        for name, shape in net.shapes().items()
    }
    ids = np.sort(rng.choice(net.config.vocab_size, vocabulary, replace=False))
    save_network(path, Trained(net, parameters, ids, {"model": model, "model_name": "tiny"}))
    return path
