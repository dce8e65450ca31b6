"""Granite 3 and 4 (Granite Team 2024, 2025): Llama with multipliers; in 4 some have no positions,
some layers of Mamba 2, and some experts beside the feed-forward blocks.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from paceline.models.config import ModelConfig
from paceline.models.families import mamba2
from paceline.models.families.base import (
    GGUF_PARTS,
    HF_PARTS,
    Family,
    Get,
    LayerNames,
    llama_feed_forward,
)
from paceline.models.families.experts import PARTS, add_experts, parts_of
from paceline.models.ops import Experts, Ops, Rows


def _from_hf(config: Mapping[str, Any]) -> dict[str, Any]:
    return {
        "embedding_scale": float(config.get("embedding_multiplier", 1.0)),
        "residual_scale": float(config.get("residual_multiplier", 1.0)),
        "attention_scale": float(config.get("attention_multiplier", 1.0)),
        "logit_scale": 1.0 / float(config.get("logits_scaling", 1.0)),
    }


def _from_gguf(get: Get) -> dict[str, Any]:
    positions = get("rope.scaling.finetuned", True)  # so llama.cpp says it of this family
    return {
        "embedding_scale": float(get("embedding_scale", 1.0)),
        "residual_scale": float(get("residual_scale", 1.0)),
        "attention_scale": float(get("attention.scale", 0.0)),
        "logit_scale": 1.0 / float(get("logit_scale", 1.0)),
        "no_positions": () if positions else tuple(range(int(get("block_count")))),
    }


GRANITE = Family("granite", "granite", interleaved=True, from_hf=_from_hf, from_gguf=_from_gguf)


_KINDS = {"attention": "*", "full_attention": "*", "mamba": "M", "linear_attention": "M"}
_USUAL = {"mamba_proj_bias": False}
_STATES = [f"mamba_{name}" for name in ("n_groups", "n_heads", "d_state", "d_head", "d_conv")]


def _entries(config: Mapping[str, Any]) -> dict[str, Any]:
    mamba2.check(config, _USUAL)
    found = config.get("layer_types") or config.get("layers_block_type")
    kinds = found or ["mamba"] * int(config["num_hidden_layers"])
    if not {*kinds} <= {*_KINDS}:
        raise ValueError(f"layers of {sorted({*kinds} - {*_KINDS})}")
    size = config["shared_intermediate_size"]
    own = {"kinds": [_KINDS[each] for each in kinds], "layer_types": None}
    return {**config, **own, "intermediate_size": size}


def _granite4_from_hf(config: Mapping[str, Any]) -> dict[str, Any]:
    general, layers = _from_hf(config), range(len(config["kinds"]))
    recurrent = tuple(index for index in layers if config["kinds"][index] == "M")
    count, heads = int(config.get("num_local_experts") or 0), None
    if recurrent:
        width = config.get("mamba_d_head", "auto")
        if width == "auto":
            width = config["mamba_expand"] * config["hidden_size"] // config["mamba_n_heads"]
        heads = mamba2.state_heads({**config, "mamba_d_head": width}, _STATES)
    return {
        **general,
        "no_positions": () if config.get("position_embedding_type") == "rope" else tuple(layers),
        "recurrent": recurrent,
        "state_heads": heads,
        "experts": _experts(count, config.get("num_experts_per_tok"), general["residual_scale"]),
    }


def _experts(count: int, used: Any, scale: float) -> Experts | None:
    return Experts(count, int(used), True, factor=scale) if count else None


def _granite4_from_gguf(get: Get) -> dict[str, Any]:
    general, counts = _from_gguf(get), get("attention.head_count_kv")
    count, used = int(get("expert_count", 0)), get("expert_used_count", 0)
    return {
        **general,
        "ffn_size": int(get("expert_shared_feed_forward_length", get("feed_forward_length"))),
        "recurrent": tuple(index for index, each in enumerate(counts) if not each),
        "state_heads": mamba2.gguf_state_heads(get),
        "experts": _experts(count, used, general["residual_scale"]),
    }


def _feed_forward(ops: Ops, config: ModelConfig, index: int, x: Rows) -> Rows:
    if config.experts is None:
        return llama_feed_forward(ops, config, index, x)
    names = LayerNames.of(index)
    normed = ops.norm(x, names.ffn_norm)
    inner = ops.gated(normed, names.gate_up)
    x = ops.linear(inner, [names.down], scale=config.residual_scale, residual=x)
    return add_experts(ops, config, index, x, normed)


_MIXED = {
    "experts.gate": "block_sparse_moe.input_linear",
    "experts.up": "block_sparse_moe.input_linear",
    "experts.down": "block_sparse_moe.output_linear",
}

GRANITE4 = Family(
    "granitemoehybrid",
    "granitehybrid",
    hf_parts=HF_PARTS
    | {
        "gate": "shared_mlp.input_linear",
        "up": "shared_mlp.input_linear",
        "down": "shared_mlp.output_linear",
        "router": "block_sparse_moe.router.layer",
        **_MIXED,
        **mamba2.hf_parts("mamba"),
    },
    gguf_parts=GGUF_PARTS | parts_of("ffn_gate_inp", "ffn_{}_exps") | mamba2.GGUF_SSM,
    fused=(("gate", "up"), *mamba2.FUSED),
    interleaved=True,
    hf_stacked={part: f"{name}.weight" for part, name in _MIXED.items()},
    gguf_stacked={part: f"ffn_{part}_shexp.weight" for part in PARTS},
    bare=mamba2.bare("mamba"),
    logarithms=("ssm_rate",),
    entries=_entries,
    from_hf=_granite4_from_hf,
    from_gguf=_granite4_from_gguf,
    halves=(mamba2.mixer, _feed_forward),
)
