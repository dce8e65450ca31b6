"""Tiny models on the CPU runtime, small enough to compile in a tenth of a second."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from tests.helpers import tiny_model as tiny

from paceline.core import processor
from paceline.models.config import ModelConfig
from paceline.native import build
from paceline.runtimes.cpu.target import OpenVinoTarget
from paceline.runtimes.weights import prepare


def config(**changes: Any) -> ModelConfig:
    """Wide enough for int8 activations in whole groups, unless changed."""
    sizes = {"hidden_size": 64, "head_dim": 16, "ffn_size": 128, **changes}
    return replace(tiny.tiny_config(), **sizes)


def target(precision: Any = "int8", shape: ModelConfig | None = None, **options: Any) -> Any:
    """A random model of that shape, with room for 2,048 tokens."""
    shape = shape or config()
    if options.get("attention") == "paths" and not processor.has("AVX512_CORE") and build.library():
        pytest.skip("native kernels need AVX-512; the plugin's are tested here")
    tensors = prepare(shape, tiny.random_tensors(shape), precision)
    return OpenVinoTarget(shape, tensors, precision, **{"kv_tokens": 2048, **options})
