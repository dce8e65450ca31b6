"""Phi-3 and Phi-4-mini (Abdin et al. 2024): fused projections, partial rotary positions."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from paceline.models.families.base import GGUF_PARTS, HF_PARTS, Family, Get

_FUSED = (("q", "k", "v"), ("gate", "up"))


def _parts(parts: Mapping[str, str], qkv: str, gate_up: str) -> dict[str, str]:
    return {**parts, **dict.fromkeys("qkv", qkv), **dict.fromkeys(("gate", "up"), gate_up)}


def _from_hf(config: Mapping[str, Any]) -> dict[str, Any]:
    window = int(config.get("sliding_window") or 0)
    short = window and window < int(config["max_position_embeddings"])
    return {"windows": (window,) * int(config["num_hidden_layers"])} if short else {}


def _from_gguf(get: Get) -> dict[str, Any]:
    window, layers = int(get("attention.sliding_window", 0)), int(get("block_count"))
    short = window and window < int(get("context_length"))
    return {"windows": (window,) * layers} if short else {}


PHI3 = Family(
    "phi3",
    "phi3",
    hf_parts=_parts(HF_PARTS, "self_attn.qkv_proj", "mlp.gate_up_proj"),
    gguf_parts=_parts(GGUF_PARTS, "attn_qkv", "ffn_up"),
    fused=_FUSED,
    from_hf=_from_hf,
    from_gguf=_from_gguf,
)
