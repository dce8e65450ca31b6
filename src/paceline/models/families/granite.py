"""Granite 3 and 4, dense (Granite Team 2024, 2025): Llama with multipliers; in 4 some have no
positions. Those with Mamba layers or experts are refused.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from paceline.errors import ModelError
from paceline.models.config import ELSEWHERE
from paceline.models.families.base import HF_PARTS, Family, Get


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


def _entries(config: Mapping[str, Any]) -> dict[str, Any]:
    if config.get("num_local_experts"):
        raise ModelError(f"this runtime runs no Granite 4 with experts: {ELSEWHERE}")
    kinds = config.get("layer_types") or config.get("layers_block_type") or ["mamba"]
    if any(kind in ("mamba", "linear_attention") for kind in kinds):
        raise ModelError(f"this runtime runs no layers of Mamba 2, as of Granite 4: {ELSEWHERE}")
    known = {"attention": "full_attention"}
    return {
        **config,
        "layer_types": [known.get(kind, kind) for kind in kinds],
        "intermediate_size": config["shared_intermediate_size"],
    }


def _granite4_from_hf(config: Mapping[str, Any]) -> dict[str, Any]:
    layers = range(int(config["num_hidden_layers"]))
    positions = config.get("position_embedding_type") == "rope"
    return {**_from_hf(config), "no_positions": () if positions else tuple(layers)}


GRANITE4 = Family(
    "granitemoehybrid",
    "",
    hf_parts=HF_PARTS
    | {
        "gate": "shared_mlp.input_linear",
        "up": "shared_mlp.input_linear",
        "down": "shared_mlp.output_linear",
    },
    fused=(("gate", "up"),),
    entries=_entries,
    from_hf=_granite4_from_hf,
)
