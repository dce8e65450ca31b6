"""Entry to the OpenVINO plugin: backend of a target, and runners of its drafter networks."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from paceline.models.config import ModelConfig
from paceline.networks.weights import Trained
from paceline.runtimes.cpu.kv_formats import GROUP
from paceline.runtimes.cpu.openvino.attention import PluginSteps
from paceline.runtimes.cpu.openvino.runner import OpenVinoRunner
from paceline.runtimes.cpu.plan import Plan

_KV_SETTINGS = {
    "fp32": {"KV_CACHE_PRECISION": "f32"},
    "fp16": {"KV_CACHE_PRECISION": "f16"},
    # By default a key's scale depends on its neighbours in the block, drafted ones included.
    "u8": {"KV_CACHE_PRECISION": "u8", "KEY_CACHE_QUANT_MODE": "BY_TOKEN"},
}


def make_steps(
    config: ModelConfig, tensors: Mapping[str, np.ndarray], plan: Plan, threads: int
) -> PluginSteps:
    """Build the backend; raise MemoryError if the key-value cache does not fit."""
    settings = _settings(threads, plan.kv_precision, plan.quantised)
    return PluginSteps(
        config, tensors, plan.kv, settings, plan.layout, blocks=plan.blocks, keep=plan.keep
    )


def make_runner(
    trained: Trained, tensors: Mapping[str, np.ndarray], plan: Plan, threads: int, **sizes: Any
) -> OpenVinoRunner:
    """Build a warm runner of a drafter network."""
    settings = _settings(threads, "fp32", plan.quantised)
    runner = OpenVinoRunner(trained, tensors, settings, **sizes)
    runner.warm_up()
    return runner


def _settings(threads: int, kv_precision: str, quantised: bool) -> dict[str, Any]:
    return {
        "PERFORMANCE_HINT": "LATENCY",
        "NUM_STREAMS": "1",
        "INFERENCE_NUM_THREADS": str(threads),
        "INFERENCE_PRECISION_HINT": "f32",
        "DYNAMIC_QUANTIZATION_GROUP_SIZE": str(GROUP if quantised else 0),
        **_KV_SETTINGS[kv_precision],
    }
