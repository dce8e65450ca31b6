"""Granite 3 (Granite Team 2024): Llama with multipliers."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from paceline.models.families.base import Family, Get


def _from_hf(config: Mapping[str, Any]) -> dict[str, Any]:
    return {
        "embedding_scale": float(config.get("embedding_multiplier", 1.0)),
        "residual_scale": float(config.get("residual_multiplier", 1.0)),
        "attention_scale": float(config.get("attention_multiplier", 1.0)),
        "logit_scale": 1.0 / float(config.get("logits_scaling", 1.0)),
    }


def _from_gguf(get: Get) -> dict[str, Any]:
    return {
        "embedding_scale": float(get("embedding_scale", 1.0)),
        "residual_scale": float(get("residual_scale", 1.0)),
        "attention_scale": float(get("attention.scale", 0.0)),
        "logit_scale": 1.0 / float(get("logit_scale", 1.0)),
    }


GRANITE = Family("granite", "granite", interleaved=True, from_hf=_from_hf, from_gguf=_from_gguf)
