"""Falcon H1 (TII 2025, arXiv:2507.22448): attention and a scan of Mamba 2 beside each other in each
layer, and numbers that multiply what goes in and out of either.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from paceline.errors import ModelError
from paceline.models.config import ELSEWHERE, ModelConfig
from paceline.models.families import mamba2
from paceline.models.families.base import HF_ENDS, HF_PARTS, Family, LayerNames, attention
from paceline.models.ops import Multipliers, Ops, Rows

_STATES = ("mamba_n_groups", "mamba_n_heads", "mamba_d_state", "mamba_d_head", "mamba_d_conv")
_USUAL = {
    **dict.fromkeys(("mamba_proj_bias", "projectors_bias", "attention_bias", "mlp_bias"), False),
    "mamba_conv_bias": True,
}


def _from_hf(config: Mapping[str, Any]) -> dict[str, Any]:
    mamba2.check(config, _USUAL)
    if config.get("mamba_rms_norm") and config.get("mamba_norm_before_gate", True):
        raise ModelError(f"this runtime norms what a scan gives behind its gate: {ELSEWHERE}")

    def of(name: str) -> float:
        return float(config.get(f"{name}_multiplier") or 1.0)

    values = int(config.get("mamba_d_ssm") or config["mamba_expand"] * config["hidden_size"])
    width = config.get("mamba_d_head", "auto")
    width = values // int(config["mamba_n_heads"]) if width == "auto" else int(width)
    inner = of("ssm_in")
    z, x, keys, queries, steps = (
        inner * float(each) for each in config.get("ssm_multipliers") or [1.0] * 5
    )
    gate, down = map(float, config.get("mlp_multipliers") or (1.0, 1.0))
    read, layers = of("attention_in"), range(int(config["num_hidden_layers"]))
    head_dim = int(config.get("head_dim") or config["hidden_size"] // config["num_attention_heads"])
    return {
        "recurrent": tuple(layers),
        "both": True,
        "state_heads": mamba2.state_heads({**config, "mamba_d_head": width}, _STATES),
        "embedding_scale": of("embedding"),
        "logit_scale": of("lm_head"),
        # Of queries and keys, which meet in scores.
        "attention_scale": read * read * of("key") / math.sqrt(head_dim),
        "multipliers": Multipliers(
            (x, keys, queries),
            z,
            steps,
            of("ssm_out"),
            of("attention_out") * read,
            gate,
            down,
            normed=bool(config.get("mamba_rms_norm")),
        ),
    }


def _mixer(ops: Ops, config: ModelConfig, index: int, x: Rows) -> Rows:
    by, heads, name = config.multipliers, config.state_heads, f"layers.{index}.ssm"
    assert by is not None
    assert heads is not None
    norm = f"layers.{index}.attention_norm"
    z = ops.linear(x, [f"{name}_z"], norm=norm, scale=by.gated)
    steps = ops.linear(x, [f"{name}_steps"], norm=norm, scale=by.steps)
    parts = ops.split(ops.linear(x, [f"{name}_x"], norm=norm), [heads.values, *2 * [heads.keys]])
    scaled = ops.concat([ops.times(each, m) for each, m in zip(parts, by.scanned, strict=True)])
    mixed = ops.scan(index, ops.convolve(index, scaled, f"{name}_conv"), steps, name, heads)
    gated = mixed * ops.silu(z)
    gated = ops.norm(gated, f"{name}_norm", heads=heads.key_heads) if by.normed else gated
    out = ops.linear(gated, [f"{name}_o"], scale=by.scan, residual=x)
    own = attention(ops, config, index, x)
    return ops.linear(own, [LayerNames.of(index).o], scale=by.attention, residual=out)


def _feed_forward(ops: Ops, config: ModelConfig, index: int, x: Rows) -> Rows:
    by, names = config.multipliers, LayerNames.of(index)
    assert by is not None
    gate, up = names.gate_up
    inner = ops.silu(ops.linear(x, [gate], norm=names.ffn_norm, scale=by.gate))
    inner = inner * ops.linear(x, [up], norm=names.ffn_norm)
    return ops.linear(inner, [names.down], scale=by.down, residual=x)


FALCON_H1 = Family(
    "falcon_h1",
    "",
    hf_ends=HF_ENDS | {"norm": "model.final_layernorm.weight"},
    hf_parts=HF_PARTS
    | {part: f"feed_forward.{part}_proj" for part in ("gate", "up", "down")}
    | {"ffn_norm": "pre_ff_layernorm", **mamba2.hf_parts("mamba")},
    fused=mamba2.FUSED,
    bare=mamba2.bare("mamba"),
    logarithms=("ssm_rate",),
    from_hf=_from_hf,
    halves=(_mixer, _feed_forward),
)
