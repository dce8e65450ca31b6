"""Nemotron H and Nemotron 3 (NVIDIA 2025, arXiv:2504.03624, arXiv:2508.14444): each layer is a scan
of Mamba 2, attention without positions, or a feed-forward block with squared ReLUs, or experts.

Steps of the scan have no least size, as where these models were trained and in GGUF files;
transformers raises them to that of its config.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from paceline.models.config import ModelConfig
from paceline.models.families import mamba2
from paceline.models.families.base import GGUF_PARTS, Family, Get, LayerNames, add_attention
from paceline.models.families.experts import add_experts
from paceline.models.ops import Experts, Ops, Rows, Sight

_KINDS = {"linear_attention": "M", "mamba": "M", "full_attention": "*", "attention": "*"}
_KINDS |= {"mlp": "-", "moe": "E"}
_USUAL = {
    **dict.fromkeys(("use_bias", "mamba_proj_bias", "attention_bias", "mlp_bias"), False),
    "mlp_hidden_act": "relu2",
    "mamba_hidden_act": "silu",
    "n_group": 1,
}


def _kinds(config: Mapping[str, Any]) -> list[str]:
    names = ("layers_block_type", "layer_types", "hybrid_override_pattern")
    found = next(config[name] for name in names if config.get(name))
    kinds = [_KINDS.get(each, each) for each in found]
    if not {*kinds} <= {*"M*-E"}:
        raise ValueError(f"layers of {sorted({*kinds} - {*'M*-E'})}")
    return kinds


def _entries(config: Mapping[str, Any]) -> dict[str, Any]:
    mamba2.check(config, _USUAL)
    kinds = _kinds(config)
    layers = {"num_hidden_layers": len(kinds), "layers_block_type": kinds, "layer_types": None}
    return {**config, **layers, "rms_norm_eps": config["layer_norm_epsilon"]}


def _layers(kinds: Sequence[str]) -> dict[str, Any]:
    def those(of: str) -> tuple[int, ...]:
        return tuple(index for index, kind in enumerate(kinds) if kind in of)

    return {
        "activation": "relu2" if "E" in kinds else "silu",  # of experts
        "recurrent": those("M"),
        "feed_forward_layers": those("-E"),
        "dense_layers": those("-"),
        "no_positions": tuple(range(len(kinds))),
    }


def _from_hf(config: Mapping[str, Any]) -> dict[str, Any]:
    kinds, experts = config["layers_block_type"], None
    if "E" in kinds:
        count, used = int(config["n_routed_experts"]), int(config["num_experts_per_tok"])
        norm, factor = config.get("norm_topk_prob"), config.get("routed_scaling_factor")
        experts = _experts(count, used, norm, factor, config.get("moe_latent_size"))
    names = ("n_groups", "mamba_num_heads", "ssm_state_size", "mamba_head_dim", "conv_kernel")
    heads = mamba2.state_heads(config, names)
    return {**_layers(kinds), "state_heads": heads, "experts": experts}


def _experts(
    count: int, used: int, norm: bool | None, factor: float | None, latent: int | None
) -> Experts:
    return Experts(
        count,
        used,
        True if norm is None else bool(norm),
        sigmoid=True,
        factor=1.0 if factor is None else float(factor),
        gated=False,
        latent=latent or 0,
    )


def _from_gguf(get: Get) -> dict[str, Any]:
    get("rope.scaling.finetuned", False)
    own = int(get("nextn_predict_layers", 0))  # of a layer that drafts, and is not read
    count, mixed = int(get("block_count")) - own, int(get("expert_count", 0))
    attends, wide = get("attention.head_count_kv"), get("feed_forward_length")
    kinds = [
        ("E" if mixed else "-") if wide[index] else "*" if attends[index] else "M"
        for index in range(count)
    ]
    get("expert_gating_func", 0), get("expert_shared_count", 0)
    scale, norm = get("expert_weights_scale", 1.0), get("expert_weights_norm", True)
    latent, experts = int(get("moe_latent_size", 0)), None
    if mixed:
        experts = _experts(mixed, int(get("expert_used_count")), norm, scale, latent)
    heads = mamba2.gguf_state_heads(get)
    return {**_layers(kinds), "layers": count, "state_heads": heads, "experts": experts}


def _mixer(ops: Ops, config: ModelConfig, index: int, x: Rows) -> Rows:
    return x if index in config.feed_forward_layers else mamba2.mixer(ops, config, index, x)


def _feed_forward(ops: Ops, config: ModelConfig, index: int, x: Rows) -> Rows:
    return _block(ops, config, index, x) if index in config.feed_forward_layers else x


def _block(ops: Ops, config: ModelConfig, index: int, x: Rows) -> Rows:
    name = f"layers.{index}"
    dense = config.experts is None or index in config.dense_layers
    normed, own = ops.norm(x, f"{name}.ffn_norm"), f"{name}.{'' if dense else 'shared_'}"
    out = ops.linear(ops.relu2(ops.linear(normed, [f"{own}up"])), [f"{own}down"], residual=x)
    return out if dense else add_experts(ops, config, index, out, normed)


def _drafts(ops: Ops, config: ModelConfig, index: int, x: Rows, sees: Sight) -> Rows:
    return _block(ops, config, index + 1, add_attention(ops, config, LayerNames.of(index), x, sees))


NEMOTRON_H = Family(
    "nemotron_h",
    "nemotron_h",
    hf_ends={
        "embed": "backbone.embeddings.weight",
        "norm": "backbone.norm_f.weight",
        "head": "lm_head.weight",
    },
    hf_layers="backbone.layers",
    hf_parts={
        "attention_norm": "norm",
        "ffn_norm": "norm",
        **{part: f"mixer.{part}_proj" for part in ("q", "k", "v", "o", "up", "down")},
        **{f"shared_{part}": f"mixer.shared_experts.{part}_proj" for part in ("up", "down")},
        **{f"experts.{part}": f"mixer.experts.{{}}.{part}_proj" for part in ("up", "down")},
        **{"experts_in": "mixer.fc1_latent_proj", "experts_out": "mixer.fc2_latent_proj"},
        "router": "mixer.gate",
        "router_offset": "mixer.gate.e_score_correction_bias",
        **mamba2.hf_parts("mixer"),
    },
    gguf_parts=GGUF_PARTS
    | {
        "ffn_norm": "attn_norm",
        **{f"shared_{part}": f"ffn_{part}_shexp" for part in ("up", "down")},
        **{f"experts.{part}": f"ffn_{part}_exps" for part in ("up", "down")},
        **{"experts_in": "ffn_latent_down", "experts_out": "ffn_latent_up"},
        "router": "ffn_gate_inp",
        "router_offset": "exp_probs_b.bias",
        **mamba2.GGUF_SSM,
    },
    fused=mamba2.FUSED,
    interleaved=True,
    bare=("mixer.gate.e_score_correction_bias", "exp_probs_b.bias", *mamba2.bare("mixer")),
    logarithms=("ssm_rate",),
    entries=_entries,
    from_hf=_from_hf,
    from_gguf=_from_gguf,
    hf_mtp={
        "mtp_fc": "mtp.layers.0.eh_proj",
        "mtp_embed_norm": "mtp.layers.0.enorm",
        "mtp_hidden_norm": "mtp.layers.0.hnorm",
        "mtp_norm": "mtp.layers.1.final_layernorm",
    },
    mtp=_drafts,
    halves=(_mixer, _feed_forward),
)
# GGUF files name those with experts otherwise.
NEMOTRON_H_MOE = replace(NEMOTRON_H, hf="nemotron_h_moe", gguf="nemotron_h_moe")
