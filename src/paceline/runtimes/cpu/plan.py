"""Plan of a CPU target: native kernels or plugin, KV format, exactness; and its backend."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from paceline.core.types import Capabilities, Layout
from paceline.errors import InvalidOption, OutOfMemory, RuntimeUnavailable
from paceline.models.config import ModelConfig, feature_layers
from paceline.native.library import has_bf16_dot
from paceline.networks.runner import Runner
from paceline.networks.weights import Trained
from paceline.runtimes.cpu.backend import Steps
from paceline.runtimes.cpu.kv_formats import (
    KvFormat,
    check_kv_precision,
    check_processor,
    products_are_exact,
    quantises_activations,
)
from paceline.runtimes.cpu.native import fit
from paceline.runtimes.cpu.native.runner import NativeRunner
from paceline.runtimes.cpu.native.target_program import NativeSteps, takes
from paceline.runtimes.kv_cache import BLOCK
from paceline.runtimes.weights import Precision

# Default capacity of the key-value cache, in tokens.
KV_TOKENS = 65_536

# Default capacity for retained prefixes of ended sequences, in tokens.
PREFIX_TOKENS = 4_096


@dataclass(frozen=True, slots=True)
class Plan:
    """How a target runs.

    Attributes:
        native: by native kernels, not the plugin.
        layout: of branches.
        kv_precision: name of `kv`.
        kv: format of keys and values.
        quantised: matmuls take quantized (int8) activations.
        exact: a row's numbers do not depend on batch composition or drafts.
        kv_tokens: capacity of the cache over all sequences.
        keep: blocks retained from ended sequences for prefix sharing.
    """

    native: bool
    layout: Layout
    kv_precision: str
    kv: KvFormat
    quantised: bool
    exact: bool
    kv_tokens: int
    keep: int

    @property
    def blocks(self) -> int:
        return self.kv_tokens // BLOCK

    @property
    def capacity(self) -> int:
        return self.blocks * BLOCK

    def capabilities(self, config: ModelConfig, precision: Precision, steps: Steps) -> Capabilities:
        """Return the capabilities of a target run by `steps` under this plan."""
        return Capabilities(
            runtime="openvino",
            device="cpu",
            precision=precision,
            vocab_size=config.vocab_size,
            max_context=min(config.max_context, self.capacity),
            hidden_size=config.hidden_size,
            hidden_states=True,
            bit_exact=self.exact,
            layout=self.layout,
            attention=steps.name,
            row_buckets=steps.row_buckets,
            feature_layers=feature_layers(config.layers),
            kv_precision=self.kv_precision,
            kv_lossy=self.kv.lossy,
            kv_bytes_per_token=steps.pool.bytes_per_token,
        )


def plan(
    config: ModelConfig,
    tensors: Mapping[str, np.ndarray],
    precision: Precision,
    *,
    layout: Layout = "exact",
    kv_tokens: int | None = None,
    prefix_tokens: int | None = None,
    kv_precision: str | None = None,
    attention: str | None = None,
) -> Plan:
    """Decide how to run a model on this processor.

    Args:
        config: shape of the model.
        tensors: prepared weights.
        precision: precision that `tensors` were packed in.
        layout: "exact" (bit-exact branches) or "masked" (one packed tree under a mask: cheaper
            attention, approximate).
        kv_tokens: capacity of the key-value cache over all sequences; memory is used as it fills.
            Default `KV_TOKENS`.
        prefix_tokens: tokens retained from ended sequences for prefix sharing; 0 shares nothing.
            Forced to 0 where rows depend on batch composition. Default `PREFIX_TOKENS`.
        kv_precision: "fp32", "fp16", "bf16" (native kernels with AVX512_BF16) or "u8" (lossy).
            Default bf16, else fp16, for native int8, whose rounding is coarser; otherwise fp32.
        attention: "paths" (native kernels), "plugin", or None for the first available.

    Raises:
        InvalidOption: unknown layout, attention or cache precision, or too small a cache.
        RuntimeUnavailable: the processor lacks instructions, or "paths" is not available.
    """
    if layout not in ("exact", "masked"):
        raise InvalidOption(f"layout {layout!r} is unknown: use exact or masked")
    kv_tokens = KV_TOKENS if kv_tokens is None else kv_tokens
    prefix_tokens = PREFIX_TOKENS if prefix_tokens is None else prefix_tokens
    if kv_tokens < 2 * BLOCK or prefix_tokens < 0:
        raise InvalidOption(
            f"kv_tokens must be {2 * BLOCK} or more and prefix_tokens 0 or more, not "
            f"{kv_tokens} and {prefix_tokens}"
        )
    if attention not in (None, "paths", "plugin"):
        raise InvalidOption(f"attention {attention!r} is unknown: use paths or plugin")
    check_processor()
    kv = check_kv_precision(kv_precision or "fp32")
    quantised = quantises_activations(precision)
    native = attention != "plugin" and layout == "exact" and takes(config, tensors, kv, quantised)
    if attention == "paths" and not native:
        raise RuntimeUnavailable(
            "attention 'paths' needs a C++ compiler, int8 or fp32 weights, a processor with "
            "AVX-512 (VNNI for int8), layout exact and a cache of fp32, fp16 or bf16"
        )
    if kv_precision == "bf16" and not native:
        raise InvalidOption(
            "a key-value cache of bf16 needs native kernels and a processor with AVX512_BF16: "
            "use fp16 or fp32"
        )
    if kv_precision is None:
        half = "bf16" if has_bf16_dot() else "fp16"
        kv_precision = half if native and precision == "int8" else "fp32"
        kv = check_kv_precision(kv_precision)
    exact = layout == "exact" and products_are_exact(config, precision, quantised)
    # Shared rows must be those that their new holder would have computed, to the last bit.
    shared = exact and (native or kv_precision == "fp32")
    return Plan(
        native,
        layout,
        kv_precision,
        kv,
        quantised,
        exact,
        kv_tokens,
        prefix_tokens // BLOCK if shared else 0,
    )


def make_steps(
    config: ModelConfig, tensors: Mapping[str, np.ndarray], plan: Plan, threads: int
) -> Steps:
    """Build the backend of a target.

    Raises:
        OutOfMemory: the key-value cache does not fit.
    """
    try:
        if not plan.native:
            steps: Steps = _plugin().make_steps(
                *(config, tensors, plan.kv, plan.layout, threads),
                kv_precision=plan.kv_precision,
                quantised=plan.quantised,
                blocks=plan.blocks,
                keep=plan.keep,
            )
            return steps
        blocks, keep = plan.blocks, plan.keep
        return NativeSteps(config, tensors, plan.kv, threads, blocks=blocks, keep=keep)
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
    sizes = {"max_context": target.max_context, "kv_tokens": plan.kv_tokens}
    if plan.native and fit.takes(trained.network, target.precision):
        native = NativeRunner(trained, tensors, threads, precision=target.precision, **sizes)
        native.warm_up()
        return native
    precision = target.precision
    runner: Runner = _plugin().make_runner(
        trained, tensors, threads, quantised=plan.quantised, precision=precision, **sizes
    )
    return runner


def _plugin() -> Any:
    # On use only: native kernels do not need OpenVINO.
    from paceline.runtimes.cpu.openvino import runner

    return runner
