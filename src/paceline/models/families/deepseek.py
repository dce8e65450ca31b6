"""DeepSeek V3 (2024, arXiv:2412.19437) and what has its layers: Moonlight, GLM 4.7 Flash.

Attention is over latents, which all heads share (arXiv:2405.04434, section 2.1): a key is the
rotated part and the latent, the latent is the value too. Each head maps its queries to latents and
what it read to its values, so that keys and values of heads are never made. Feed-forward blocks are
experts, chosen by sigmoids, beside a shared one; those of the first layers are dense.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from paceline.errors import ModelError
from paceline.models.config import ELSEWHERE, Latents, ModelConfig, Shapes, stretch
from paceline.models.families.base import (
    GGUF_PARTS,
    HF_PARTS,
    Family,
    Get,
    LayerNames,
    heads_of,
    llama_feed_forward,
)
from paceline.models.families.experts import PARTS, add_experts, parts_of, stacked_in
from paceline.models.ops import Experts, Ops, Rows, Sight

_LOG = logging.getLogger(__name__)
_WIDTHS = ("kv_lora_rank", "qk_rope_head_dim", "qk_nope_head_dim", "v_head_dim")
_SIGMOID = 2  # in GGUF files; 1 is a softmax
# What `Ops.route` computes here, by its names in configs.
_ROUTES = {"scoring_func": "sigmoid", "topk_method": "noaux_tc"}


def _entries(config: Mapping[str, Any]) -> dict[str, Any]:
    return {**config, "head_dim": config["qk_rope_head_dim"]}


def _of(latents: Latents, scale: float) -> dict[str, Any]:
    return {
        "latents": latents,
        "kv_heads": 1,
        "head_dim": latents.rotated + latents.rank,
        "rotated": latents.rotated,
        "attention_scale": scale / math.sqrt(latents.rotated + latents.plain),
    }


def _from_hf(config: Mapping[str, Any]) -> dict[str, Any]:
    if not config.get("rope_interleave", True):
        raise ModelError(f"this runtime runs latents with rotary pairs as neighbours: {ELSEWHERE}")
    check_shared(config["n_shared_experts"])
    for name, usual in _ROUTES.items():
        if config.get(name, usual) != usual:
            raise ModelError(
                f"this runtime runs {name} {usual} alone, not {config[name]}: {ELSEWHERE}"
            )
    rope = config.get("rope_parameters") or config.get("rope_scaling") or {}
    scale = stretch(float(rope.get("factor") or 1), float(rope.get("mscale_all_dim") or 0))
    experts = Experts(
        int(config["n_routed_experts"]),
        int(config["num_experts_per_tok"]),
        bool(config["norm_topk_prob"]),
        sigmoid=True,
        groups=int(config["n_group"]),
        groups_used=int(config["topk_group"]),
        factor=float(config["routed_scaling_factor"]),
    )
    kinds, layers = config.get("mlp_layer_types"), range(int(config["num_hidden_layers"]))
    first = int(config.get("first_k_dense_replace", 1))
    dense = [kinds[each] == "dense" if kinds else each < first for each in layers]
    _tell(int(config.get("num_nextn_predict_layers") or 0) - 1)
    latents = Latents(int(config["q_lora_rank"] or 0), *(int(config[each]) for each in _WIDTHS))
    return {
        **_of(latents, scale**2),
        "experts": experts,
        "dense_layers": tuple(each for each in layers if dense[each]),
    }


def check_shared(count: Any) -> None:
    """Raise ModelError without experts that all rows use."""
    if not count:
        raise ModelError(f"this runtime runs experts beside a shared one here: {ELSEWHERE}")


def _tell(more: int) -> None:
    if more > 0:
        _LOG.warning("layers of the model that would draft are not read: %d", more)


def _gguf_entries(metadata: Mapping[str, Any], shapes: Shapes) -> dict[str, Any]:
    # Files of GLM say nothing of it. Scores that an offset corrects are sigmoids.
    offset = any(name.endswith(".exp_probs_b.bias") for name in shapes)
    return {**({"deepseek2.expert_gating_func": _SIGMOID} if offset else {}), **metadata}


def _from_gguf(get: Get) -> dict[str, Any]:
    width = int(get("attention.key_length_mla", 0))
    if not width:
        raise ModelError(
            "the GGUF file has attn_kv_b, which newer files have as attn_k_b and attn_v_b: "
            "convert the model again"
        )
    if get("rope.scaling.type", "none") != "none":
        raise ModelError(f"this runtime runs latents without extended positions: {ELSEWHERE}")
    more, rotated = int(get("nextn_predict_layers", 0)), int(get("rope.dimension_count"))
    _tell(more)
    rank, read = int(get("attention.kv_lora_rank")), int(get("attention.value_length"))
    if read != rank:
        raise ModelError(f"latents of {rank} numbers cannot be values of {read}: convert it again")
    check_shared(get("expert_shared_count", 0))
    count, used = int(get("expert_count")), int(get("expert_used_count"))
    gating = get("expert_gating_func", None)
    if gating not in (1, _SIGMOID):
        raise ModelError(f"expert_gating_func {gating} is not known: convert the model again")
    groups = int(get("expert_group_count", 1))
    experts = Experts(
        count,
        used,
        bool(get("expert_weights_norm", False)),
        sigmoid=gating == _SIGMOID,
        groups=groups,
        groups_used=int(get("expert_group_used_count", groups)),
        factor=float(get("expert_weights_scale", 1.0)),
    )
    value = int(get("attention.value_length_mla"))
    latents = Latents(int(get("attention.q_lora_rank", 0)), rank, rotated, width - rotated, value)
    return {
        **_of(latents, 1.0),
        "layers": int(get("block_count")) - more,
        "experts": experts,
        "dense_layers": tuple(range(int(get("leading_dense_block_count", 0)))),
    }


def _attention(ops: Ops, config: ModelConfig, index: int, x: Rows) -> Rows:
    return _attend(ops, config, index, x, index, "context")


def _drafts(ops: Ops, config: ModelConfig, index: int, x: Rows, sees: Sight) -> Rows:
    return feed_forward(ops, config, index, _attend(ops, config, index, x, 0, sees))


def _attend(ops: Ops, config: ModelConfig, index: int, x: Rows, layer: int, sees: Sight) -> Rows:
    name, of, heads = f"layers.{index}", config.latents, range(config.heads)
    assert of is not None
    norm = f"{name}.attention_norm"
    if of.query_rank:
        inner = ops.linear(x, [f"{name}.q_a"], norm=norm)
        q = ops.linear(inner, [f"{name}.q_b"], norm=f"{name}.q_a_norm")
    else:
        q = ops.linear(x, [f"{name}.q"], norm=norm)
    parts = ops.split(q, [of.rotated, of.plain] * config.heads)
    asked = [ops.linear(parts[2 * h + 1], [f"{name}.heads.{h}.k"]) for h in heads]
    rotated, latent = ops.split(ops.linear(x, [f"{name}.kv_a"], norm=norm), [of.rotated, of.rank])
    key = [rotated, ops.norm(latent, f"{name}.kv_a_norm")]
    queries = [each for pair in zip(parts[::2], asked, strict=True) for each in pair]
    mixed = ops.attend(layer, ops.concat([*queries, *key, *key]), heads_of(config, index), sees)
    read = ops.split(mixed, [of.rotated, of.rank] * config.heads)[1::2]
    values = [ops.linear(each, [f"{name}.heads.{h}.v"]) for h, each in enumerate(read)]
    residual = ops.last(x) if sees == "last" else x
    return ops.linear(ops.concat(values), LayerNames.of(index)[2:3], residual=residual)


def feed_forward(ops: Ops, config: ModelConfig, index: int, x: Rows) -> Rows:
    """Experts and a shared one, added to the stream; of a dense layer SwiGLU."""
    if index in config.dense_layers:
        return llama_feed_forward(ops, config, index, x)
    normed = ops.norm(x, f"layers.{index}.ffn_norm")
    gate, up, down = (f"layers.{index}.shared_{part}" for part in PARTS)
    x = ops.linear(ops.gated(normed, [gate, up]), [down], residual=x)
    return add_experts(ops, config, index, x, normed)


DEEPSEEK3 = Family(
    "deepseek_v3",
    "deepseek2",
    hf_parts=HF_PARTS
    | {
        "q_a": "self_attn.q_a_proj",
        "q_a_norm": "self_attn.q_a_layernorm",
        "q_b": "self_attn.q_b_proj",
        "kv_a": "self_attn.kv_a_proj_with_mqa",
        "kv_a_norm": "self_attn.kv_a_layernorm",
        "heads.k": "self_attn.kv_b_proj",
        "heads.v": "self_attn.kv_b_proj",
        **parts_of("mlp.gate", "mlp.experts.{{}}.{}_proj"),
        "router_offset": "mlp.gate.e_score_correction_bias",
        **{f"shared_{part}": f"mlp.shared_experts.{part}_proj" for part in PARTS},
    },
    gguf_parts=GGUF_PARTS
    | {
        "q_a": "attn_q_a",
        "q_a_norm": "attn_q_a_norm",
        "q_b": "attn_q_b",
        "kv_a": "attn_kv_a_mqa",
        "kv_a_norm": "attn_kv_a_norm",
        "heads.k": "attn_k_b",
        "heads.v": "attn_v_b",
        **parts_of("ffn_gate_inp", "ffn_{}_exps"),
        "router_offset": "exp_probs_b.bias",
        **{f"shared_{part}": f"ffn_{part}_shexp" for part in PARTS},
    },
    hf_stacked=stacked_in("mlp.experts"),
    bare=("mlp.gate.e_score_correction_bias", "exp_probs_b.bias"),
    entries=_entries,
    gguf_entries=_gguf_entries,
    from_hf=_from_hf,
    from_gguf=_from_gguf,
    hf_mtp={
        "mtp_fc": "model.layers.{}.eh_proj",
        "mtp_embed_norm": "model.layers.{}.enorm",
        "mtp_hidden_norm": "model.layers.{}.hnorm",
        "mtp_norm": "model.layers.{}.shared_head.norm",
    },
    mtp=_drafts,
    halves=(_attention, feed_forward),
)
GLM4_LITE = replace(DEEPSEEK3, hf="glm4_moe_lite", gguf="")
