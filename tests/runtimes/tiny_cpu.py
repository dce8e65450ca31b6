"""Tiny models on the CPU runtime."""

from __future__ import annotations

import tempfile
from dataclasses import replace
from pathlib import Path
from typing import Any

from tests.helpers import tiny_model as tiny

from paceline.models.config import ModelConfig
from paceline.models.source import DirectorySource
from paceline.models.weights import Weights
from paceline.runtimes.cpu.target import CpuTarget

_FOLDER = tempfile.TemporaryDirectory()


def config(**changes: Any) -> ModelConfig:
    """In whole groups of 32, unless changed."""
    sizes = {"hidden_size": 64, "head_dim": 16, "ffn_size": 128, **changes}
    return replace(tiny.tiny_config(), **sizes)


def weights(shape: ModelConfig) -> Weights:
    """Those of `tiny.random_tensors`, from a file."""
    folder = Path(tempfile.mkdtemp(dir=_FOLDER.name))
    return DirectorySource(tiny.save_directory(folder, shape)).weights()


def target(precision: str = "int8", shape: ModelConfig | None = None, **options: Any) -> Any:
    """A random model of that shape, with room for 2,048 tokens."""
    shape = shape or config()
    return CpuTarget(shape, weights(shape), precision, **{"kv_tokens": 2048, **options})
