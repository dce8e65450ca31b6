"""Qwen 3.5 to 3.8 (Qwen Team 2026): three gated delta rules, then one gated attention; dense, or
with experts of which one is shared.

GGUF files hold value heads in another order than checkpoints: `StateHeads.tiled`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from paceline.errors import ModelError
from paceline.models.config import ELSEWHERE, ModelConfig
from paceline.models.families.base import (
    GGUF_PARTS,
    HF_PARTS,
    Family,
    Get,
    LayerNames,
    heads_of,
    llama_feed_forward,
)
from paceline.models.families.experts import GGUF_STACKED, PARTS, feed_forward, parts_of, stacked_in
from paceline.models.ops import Experts, Ops, Rows, Sight, StateHeads

_EVERY = 4  # layer of which one has attention
_ROTATED = 0.25


def _entries(config: Mapping[str, Any]) -> dict[str, Any]:
    # Positions of pictures are of three kinds; those of text are alike.
    rope = {
        name: value
        for name, value in (config.get("rope_parameters") or {}).items()
        if not name.startswith("mrope_")
    }
    share = rope.pop("partial_rotary_factor", config.get("partial_rotary_factor", _ROTATED))
    return {**config, "rope_parameters": {**rope, "partial_rotary_factor": share}}


def _recurrent(layers: int, every: int) -> tuple[int, ...]:
    return tuple(index for index in range(layers) if (index + 1) % every)


def _from_hf(config: Mapping[str, Any]) -> dict[str, Any]:
    if not config.get("attn_output_gate", True):
        raise ModelError(f"this runtime runs Qwen 3.5 with gated attention alone: {ELSEWHERE}")
    kinds, layers = config.get("layer_types"), int(config["num_hidden_layers"])
    recurrent = _recurrent(layers, int(config.get("full_attention_interval") or _EVERY))
    if kinds:
        recurrent = tuple(i for i, kind in enumerate(kinds) if kind == "linear_attention")
    return {
        "qk_norm": True,
        "recurrent": recurrent,
        "state_heads": StateHeads(
            int(config["linear_num_key_heads"]),
            int(config["linear_num_value_heads"]),
            int(config["linear_key_head_dim"]),
            int(config["linear_value_head_dim"]),
            int(config["linear_conv_kernel_dim"]),
        ),
    }


def _from_gguf(get: Get) -> dict[str, Any]:
    get("rope.dimension_sections", None)
    layers = int(get("block_count")) - int(get("nextn_predict_layers", 0))
    kinds, value_heads = get("attention.recurrent_layers", None), int(get("ssm.time_step_rank"))
    recurrent = _recurrent(layers, int(get("full_attention_interval", _EVERY)))
    if kinds is not None:
        recurrent = tuple(index for index in range(layers) if kinds[index])
    width = int(get("ssm.state_size"))
    return {
        "layers": layers,
        "qk_norm": True,
        "recurrent": recurrent,
        "state_heads": StateHeads(
            int(get("ssm.group_count")),
            value_heads,
            width,
            int(get("ssm.inner_size")) // value_heads,
            int(get("ssm.conv_kernel")),
            tiled=True,
        ),
    }


def _mixer(ops: Ops, config: ModelConfig, index: int, x: Rows) -> Rows:
    return (_delta if index in config.recurrent else _attention)(ops, config, index, x)


def _attention(ops: Ops, config: ModelConfig, index: int, x: Rows) -> Rows:
    return _gated(ops, config, index, x, config.attention_layers.index(index), "context")


def _gated(ops: Ops, config: ModelConfig, index: int, x: Rows, layer: int, sees: Sight) -> Rows:
    names = LayerNames.of(index)
    qkv = ops.linear(x, names.qkv, norm=names.norm)
    mixed = ops.attend(layer, qkv, heads_of(config, index), sees)
    x = ops.last(x) if sees == "last" else x
    by = ops.linear(x, [f"layers.{index}.q_gate"], norm=names.norm)
    return ops.linear(ops.gate(mixed, by), [names.o], residual=x)


def _drafts(ops: Ops, config: ModelConfig, index: int, x: Rows, sees: Sight) -> Rows:
    return feed_forward(ops, config, index, _gated(ops, config, index, x, 0, sees))


def _delta(ops: Ops, config: ModelConfig, index: int, x: Rows) -> Rows:
    heads, name, layer = config.state_heads, f"layers.{index}.delta", config.recurrent.index(index)
    assert heads is not None
    norm = f"layers.{index}.attention_norm"
    read = ops.linear(x, [f"{name}_qkv", f"{name}_z"], norm=norm)
    qkv, z = ops.split(read, [2 * heads.keys + heads.values, heads.values])
    gates = ops.linear(x, [f"{name}_b", f"{name}_a"], norm=norm)
    mixed = ops.delta(layer, ops.convolve(layer, qkv, f"{name}_conv"), gates, name, heads)
    gated = ops.norm(mixed, f"{name}_norm", heads=heads.value_heads) * ops.silu(z)
    return ops.linear(gated, [f"{name}_o"], residual=x)


QWEN3_5 = Family(
    "qwen3_5_text",
    "qwen35",
    hf_parts=HF_PARTS
    | {
        "q_gate": "self_attn.q_proj",
        "delta_qkv": "linear_attn.in_proj_qkv",
        "delta_z": "linear_attn.in_proj_z",
        "delta_b": "linear_attn.in_proj_b",
        "delta_a": "linear_attn.in_proj_a",
        "delta_conv": "linear_attn.conv1d",
        "delta_rate": "linear_attn.A_log",
        "delta_dt": "linear_attn.dt_bias",
        "delta_norm": "linear_attn.norm",
        "delta_o": "linear_attn.out_proj",
    },
    gguf_parts=GGUF_PARTS
    | {
        "ffn_norm": "post_attention_norm",
        "q_gate": "attn_q",
        "delta_qkv": "attn_qkv",
        "delta_z": "attn_gate",
        "delta_b": "ssm_beta",
        "delta_a": "ssm_alpha",
        "delta_conv": "ssm_conv1d",
        "delta_rate": "ssm_a",
        "delta_dt": "ssm_dt.bias",
        "delta_norm": "ssm_norm",
        "delta_o": "ssm_out",
        "mtp_fc": "nextn.eh_proj",
        "mtp_embed_norm": "nextn.enorm",
        "mtp_hidden_norm": "nextn.hnorm",
        "mtp_norm": "nextn.shared_head_norm",
    },
    norms_less_one=True,
    whole=("delta_norm",),
    bare=("linear_attn.A_log", "linear_attn.dt_bias", "ssm_a", "ssm_dt.bias"),
    logarithms=("delta_rate",),
    gated_queries=True,
    wraps=("qwen3_5",),
    entries=_entries,
    from_hf=_from_hf,
    from_gguf=_from_gguf,
    hf_mtp={
        "mtp_fc": "mtp.fc",
        "mtp_embed_norm": "mtp.pre_fc_norm_embedding",
        "mtp_hidden_norm": "mtp.pre_fc_norm_hidden",
        "mtp_norm": "mtp.norm",
    },
    mtp=_drafts,
    halves=(_mixer, llama_feed_forward),
)


def _moe_entries(config: Mapping[str, Any]) -> dict[str, Any]:
    return {**_entries(config), "intermediate_size": config["moe_intermediate_size"]}


def _moe_from_hf(config: Mapping[str, Any]) -> dict[str, Any]:
    count, used = int(config["num_experts"]), int(config["num_experts_per_tok"])
    return {**_from_hf(config), "experts": Experts(count, used, True, shared=True)}


def _moe_from_gguf(get: Get) -> dict[str, Any]:
    count, used = int(get("expert_count")), int(get("expert_used_count"))
    return {**_from_gguf(get), "experts": Experts(count, used, True, shared=True)}


QWEN3_5_MOE = replace(
    QWEN3_5,
    hf="qwen3_5_moe_text",
    gguf="qwen35moe",
    hf_parts={
        **QWEN3_5.hf_parts,
        **parts_of("mlp.gate", "mlp.experts.{{}}.{}_proj"),
        **{f"shared_{part}": f"mlp.shared_expert.{part}_proj" for part in PARTS},
        "shared_by": "mlp.shared_expert_gate",
    },
    gguf_parts={
        **QWEN3_5.gguf_parts,
        **parts_of("ffn_gate_inp", "ffn_{}_exps"),
        **{f"shared_{part}": f"ffn_{part}_shexp" for part in PARTS},
        "shared_by": "ffn_gate_inp_shexp",
    },
    hf_stacked=stacked_in("mlp.experts"),
    gguf_stacked=GGUF_STACKED,
    rows=("shared_by",),
    wraps=("qwen3_5_moe",),
    entries=_moe_entries,
    from_hf=_moe_from_hf,
    from_gguf=_moe_from_gguf,
    halves=(_mixer, feed_forward),
)
