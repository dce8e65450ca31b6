"""Build the planned backend of a target, and runners of its drafter networks.

The plugin is imported on use, so that this module itself does not need OpenVINO.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from paceline.core.types import Capabilities
from paceline.errors import OutOfMemory
from paceline.models.config import ModelConfig
from paceline.networks.runner import Runner
from paceline.networks.weights import Trained
from paceline.runtimes.cpu.backend import Steps
from paceline.runtimes.cpu.kv_formats import KV_FORMATS, plugin_settings
from paceline.runtimes.cpu.native import fit as native_network_fit
from paceline.runtimes.cpu.native.runner import NativeRunner
from paceline.runtimes.cpu.native.target_program import NativeSteps
from paceline.runtimes.cpu.plan import Plan


def make_steps(
    config: ModelConfig, tensors: Mapping[str, np.ndarray], plan: Plan, threads: int
) -> Steps:
    """Build the backend of a target.

    Raises:
        OutOfMemory: the key-value cache does not fit.
    """
    blocks, keep = plan.blocks, plan.keep
    try:
        if plan.own:
            return NativeSteps(config, tensors, plan.kv, threads, blocks=blocks, keep=keep)

        from paceline.runtimes.cpu.openvino.attention import PluginSteps

        settings = plugin_settings(threads, plan.kv, plan.quantised)
        return PluginSteps(
            config, tensors, plan.kv, settings, plan.layout, blocks=blocks, keep=keep
        )
    except MemoryError as error:
        raise OutOfMemory(
            f"no memory for a key-value cache of {plan.capacity} tokens: load the model with a "
            "smaller kv_tokens or a coarser kv_precision"
        ) from error


def make_runner(
    trained: Trained,
    tensors: Mapping[str, np.ndarray],
    plan: Plan,
    threads: int,
    target: Capabilities,
) -> Runner:
    """Build a warm runner of a drafter network: native kernels if they fit, else the plugin."""
    precision = target.precision
    sizes = {"max_context": target.max_context, "kv_tokens": plan.kv_tokens}
    if plan.own and native_network_fit.takes(trained.network, precision):
        native = NativeRunner(trained, tensors, threads, precision=precision, **sizes)
        native.warm_up()
        return native

    from paceline.runtimes.cpu.openvino.runner import OpenVinoRunner

    settings = plugin_settings(threads, KV_FORMATS["fp32"], plan.quantised)
    runner = OpenVinoRunner(trained, tensors, settings, precision=precision, **sizes)
    runner.warm_up()
    return runner
