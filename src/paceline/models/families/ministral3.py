"""Ministral 3 (Mistral AI 2025): Llama whose queries grow with their position; YaRN."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from paceline.models.config import temperature
from paceline.models.families.base import Family, Get
from paceline.models.families.mistral import windows

# What `rope_parameters` have that is not of rotary positions.
_STRENGTH, _CONTEXT = "llama_4_scaling_beta", "max_position_embeddings"


def _entries(config: Mapping[str, Any]) -> dict[str, Any]:
    rope = config["rope_parameters"]
    kept = {name: each for name, each in rope.items() if name not in (_STRENGTH, _CONTEXT)}
    return {**config, "rope_parameters": kept, _STRENGTH: rope.get(_STRENGTH)}


def _from_hf(config: Mapping[str, Any]) -> dict[str, Any]:
    context = int(config[_CONTEXT])
    span = int(config["rope_parameters"].get("original_max_position_embeddings") or context)
    return {
        **windows(config),
        "temperature": temperature(float(config[_STRENGTH] or 0.0), span, context),
    }


def _from_gguf(get: Get) -> dict[str, Any]:
    context, strength = int(get("context_length")), float(get("attention.temperature_scale", 0.0))
    span = int(get("rope.scaling.original_context_length", context) or context)
    span = int(get("attention.temperature_length", span) or span)
    return {"temperature": temperature(strength, span, context)}


MINISTRAL3 = Family(
    "ministral3",
    "mistral3",
    interleaved=True,
    wraps=("mistral3",),
    entries=_entries,
    from_hf=_from_hf,
    from_gguf=_from_gguf,
)
