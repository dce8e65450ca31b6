"""Layers of Mamba 2 (Dao and Gu 2024, arXiv:2405.21060), which hybrids of several families have."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from paceline.errors import ModelError
from paceline.models.config import ELSEWHERE, ModelConfig
from paceline.models.families.base import Get, llama_attention
from paceline.models.ops import Ops, Rows, StateHeads

# What gates, what is convolved and the steps, by which states fade, come from one matrix.
FUSED = (("ssm_z", "ssm_x", "ssm_steps"),)
_GGUF = ("in", "conv1d", "a", "dt.bias", "d", "norm", "out")
_HF = ("in_proj", "conv1d", "A_log", "dt_bias", "D", "norm", "out_proj")


def _parts(beginning: str, names: Sequence[str]) -> dict[str, str]:
    ours = [*FUSED[0], *(f"ssm_{part}" for part in ("conv", "rate", "dt", "skip", "norm", "o"))]
    theirs = [names[0]] * len(FUSED[0]) + list(names[1:])
    return {part: beginning + name for part, name in zip(ours, theirs, strict=True)}


def hf_parts(module: str) -> dict[str, str]:
    """Return names of a layer's parts in checkpoints, by canonical name."""
    return _parts(f"{module}.", _HF)


GGUF_SSM = _parts("ssm_", _GGUF)


def bare(module: str) -> tuple[str, ...]:
    """Return names in files that have no ".weight" behind them."""
    return (*(f"{module}.{part}" for part in _HF[2:5]), *(f"ssm_{part}" for part in _GGUF[2:5]))


def check(config: Mapping[str, Any], usual: Mapping[str, Any]) -> None:
    """Raise ModelError where a config says anything else than usual, or steps have limits."""
    said = {name: config[name] for name in usual if config.get(name, usual[name]) != usual[name]}
    limits = config.get("time_step_limit") or ()
    if [_number(each) for each in limits] not in ([], [0.0, float("inf")]):
        said["time_step_limit"] = limits
    for name, value in said.items():
        if value is not None:
            what = f"{name} {value!r}"
            raise ModelError(f"this runtime runs no layers of Mamba 2 with {what}: {ELSEWHERE}")


def _number(said: Any) -> float:
    # Newer configs wrap what JSON has no word for.
    return float(said["__float__"] if isinstance(said, Mapping) else said)


def state_heads(config: Mapping[str, Any], names: Sequence[str]) -> StateHeads:
    """Return the shape of states from entries of a config: groups, heads, both widths, and taps."""
    groups, heads, keys, values, taps = (int(config[name]) for name in names)
    return StateHeads(groups, heads, keys, values, taps)


def gguf_state_heads(get: Get) -> StateHeads:
    """Return the shape of states that a GGUF file tells."""
    heads, groups = int(get("ssm.time_step_rank")), int(get("ssm.group_count"))
    width, taps = int(get("ssm.inner_size")) // heads, int(get("ssm.conv_kernel"))
    return StateHeads(groups, heads, int(get("ssm.state_size")), width, taps)


def mixer(ops: Ops, config: ModelConfig, index: int, x: Rows) -> Rows:
    """A scan or attention, added to the stream."""
    if index not in config.recurrent:
        return llama_attention(ops, config, index, x)
    heads, name, layer = config.state_heads, f"layers.{index}.ssm", config.recurrent.index(index)
    assert heads is not None
    norm = f"layers.{index}.attention_norm"
    read = ops.linear(x, [f"{name}_z", f"{name}_x"], norm=norm)
    z, read = ops.split(read, [heads.values, heads.values + 2 * heads.keys])
    steps = ops.linear(x, [f"{name}_steps"], norm=norm)
    mixed = ops.scan(layer, ops.convolve(layer, read, f"{name}_conv"), steps, name, heads)
    gated = ops.norm(mixed * ops.silu(z), f"{name}_norm", heads=heads.key_heads)
    return ops.linear(gated, [f"{name}_o"], scale=config.residual_scale, residual=x)
