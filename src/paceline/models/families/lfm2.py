"""LFM 2 and 2.5 (Liquid AI 2025): short convolutions that are gated before and after, and some
layers of attention; dense, or with experts behind the first layers.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from paceline.errors import ModelError
from paceline.models.config import ELSEWHERE, ModelConfig
from paceline.models.families.base import (
    GGUF_PARTS,
    HF_ENDS,
    HF_PARTS,
    Family,
    Get,
    LayerNames,
    llama_attention,
    llama_feed_forward,
)
from paceline.models.families.experts import feed_forward, parts_of
from paceline.models.ops import Experts, Ops, Rows

_BASE = 1_000_000.0


def _entries(config: Mapping[str, Any]) -> dict[str, Any]:
    size = int(config.get("block_ff_dim") or config["intermediate_size"])
    if config.get("block_auto_adjust_ff_dim", True):
        size, multiple = int(2 * size / 3), int(config.get("block_multiple_of") or 256)
        times = config.get("block_ffn_dim_multiplier", 1.0)
        if times is not None:
            size = multiple * -(-int(times * size) // multiple)
    tied = config.get("tie_embedding", config.get("tie_word_embeddings", True))
    more = {"intermediate_size": size, "rms_norm_eps": config["norm_eps"]}
    return {"rope_theta": _BASE, **config, **more, "tie_word_embeddings": tied}


def _from_hf(config: Mapping[str, Any]) -> dict[str, Any]:
    if config.get("conv_bias"):
        raise ModelError(f"this runtime runs LFM 2 without biases alone: {ELSEWHERE}")
    attends, layers = config.get("full_attn_idxs"), range(int(config["num_hidden_layers"]))
    if config.get("layer_types") or attends is None:
        attends = [index for index, kind in enumerate(config["layer_types"]) if kind != "conv"]
    return _hybrid(int(config["conv_L_cache"]), [index not in attends for index in layers])


def _from_gguf(get: Get) -> dict[str, Any]:
    counts = get("attention.head_count_kv")
    return _hybrid(int(get("shortconv.l_cache")), [not int(each) for each in counts])


def _hybrid(taps: int, convolved: list[bool]) -> dict[str, Any]:
    recurrent = tuple(index for index, each in enumerate(convolved) if each)
    return {"qk_norm": True, "recurrent": recurrent, "short_taps": taps if recurrent else 0}


def _mixer(ops: Ops, config: ModelConfig, index: int, x: Rows) -> Rows:
    if index not in config.recurrent:
        return llama_attention(ops, config, index, x)
    name = f"layers.{index}.conv"
    read = ops.linear(x, [f"{name}_in"], norm=LayerNames.of(index).norm)
    before, behind, values = ops.split(read, [config.hidden_size] * 3)
    layer = config.recurrent.index(index)
    mixed = ops.convolve(layer, before * values, f"{name}_taps", activated=False)
    return ops.linear(behind * mixed, [f"{name}_o"], residual=x)


LFM2 = Family(
    "lfm2",
    "lfm2",
    hf_ends=HF_ENDS | {"norm": "model.embedding_norm.weight"},
    gguf_ends={"norm": "token_embd_norm.weight"},
    hf_parts=HF_PARTS
    | {
        "attention_norm": "operator_norm",
        "o": "self_attn.out_proj",
        "q_norm": "self_attn.q_layernorm",
        "k_norm": "self_attn.k_layernorm",
        "ffn_norm": "ffn_norm",
        "gate": "feed_forward.w1",
        "up": "feed_forward.w3",
        "down": "feed_forward.w2",
        "conv_in": "conv.in_proj",
        "conv_taps": "conv.conv",
        "conv_o": "conv.out_proj",
    },
    gguf_parts=GGUF_PARTS
    | {
        "conv_in": "shortconv.in_proj",
        "conv_taps": "shortconv.conv",
        "conv_o": "shortconv.out_proj",
    },
    entries=_entries,
    from_hf=_from_hf,
    from_gguf=_from_gguf,
    halves=(_mixer, llama_feed_forward),
)


def _moe_entries(config: Mapping[str, Any]) -> dict[str, Any]:
    if not config.get("use_expert_bias", True):
        raise ModelError(f"this runtime runs LFM 2 with biases of experts alone: {ELSEWHERE}")
    return _entries({**config, "block_auto_adjust_ff_dim": False})


def _moe_from_hf(config: Mapping[str, Any]) -> dict[str, Any]:
    count, used = int(config["num_experts"]), int(config["num_experts_per_tok"])
    norm, factor = config.get("norm_topk_prob", True), config.get("routed_scaling_factor", 1.0)
    return {
        **_from_hf(config),
        "experts": Experts(count, used, bool(norm), sigmoid=True, factor=float(factor)),
        "dense_layers": tuple(range(int(config["num_dense_layers"]))),
    }


def _moe_from_gguf(get: Get) -> dict[str, Any]:
    get("expert_gating_func", 0)
    count, used = int(get("expert_count")), int(get("expert_used_count"))
    factor = float(get("expert_weights_scale", 1.0))
    return {
        **_from_gguf(get),
        "experts": Experts(count, used, True, sigmoid=True, factor=factor),
        "dense_layers": tuple(range(int(get("leading_dense_block_count")))),
    }


LFM2_MOE = replace(
    LFM2,
    hf="lfm2_moe",
    gguf="lfm2moe",
    hf_parts={
        **LFM2.hf_parts,
        **parts_of("feed_forward.gate", "feed_forward.experts.{{}}.{}", ("w1", "w3", "w2")),
        "router_offset": "feed_forward.expert_bias",
    },
    gguf_parts={
        **LFM2.gguf_parts,
        **parts_of("ffn_gate_inp", "ffn_{}_exps"),
        "router_offset": "exp_probs_b.bias",
    },
    bare=("feed_forward.expert_bias", "exp_probs_b.bias"),
    entries=_moe_entries,
    from_hf=_moe_from_hf,
    from_gguf=_moe_from_gguf,
    halves=(_mixer, feed_forward),
)
