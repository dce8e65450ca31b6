"""Gemma 3, text (Gemma Team 2025): four norms, GeGLU, windows of two kinds, two rotary bases."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from paceline.models.config import ModelConfig
from paceline.models.families.base import HF_PARTS, Family, Get, attention, feed_forward
from paceline.models.ops import Ops, Rows

_PATTERN = 6  # every sixth layer sees everything
_LOCAL_BASE = 10_000.0
_LARGEST = 62  # layers of the 27B model, whose scores are scaled by its width


def _windows(layers: int, window: int, pattern: int = _PATTERN) -> tuple[int, ...]:
    return tuple(0 if (index + 1) % pattern == 0 else window for index in range(layers))


def _from_hf(config: Mapping[str, Any]) -> dict[str, Any]:
    layers, window = int(config["num_hidden_layers"]), int(config["sliding_window"])
    kinds = config.get("layer_types")
    pattern = config.get("sliding_window_pattern") or config.get("_sliding_window_pattern")
    windows = _windows(layers, window, int(pattern or _PATTERN))
    if kinds:
        windows = tuple(window if kind == "sliding_attention" else 0 for kind in kinds)
    local = (config.get("rope_parameters") or {}).get("sliding_attention", {}).get("rope_theta")
    return {
        "activation": "gelu",
        "qk_norm": True,
        "windows": windows,
        "local_rope_base": float(local or config.get("rope_local_base_freq", _LOCAL_BASE)),
        "embedding_scale": math.sqrt(config["hidden_size"]),
        "attention_scale": 1 / math.sqrt(config.get("query_pre_attn_scalar", 256)),
    }


def _from_gguf(get: Get) -> dict[str, Any]:
    layers, width = int(get("block_count")), int(get("embedding_length"))
    out: dict[str, Any] = {
        "activation": "gelu",
        "windows": _gguf_windows(get, layers),
        "local_rope_base": float(get("rope.freq_base_swa", _LOCAL_BASE)),
        "embedding_scale": math.sqrt(width),
    }
    if layers == _LARGEST:
        out["attention_scale"] = math.sqrt(int(get("attention.head_count")) / width)
    return out


def _gguf_windows(get: Get, layers: int) -> tuple[int, ...]:
    # The pattern is how many layers make a period, or says of each whether it has a window.
    window, pattern = get("attention.sliding_window", 0), get("attention.sliding_window_pattern", 6)
    if not window:
        return ()
    if isinstance(pattern, int):
        return _windows(layers, int(window), pattern)
    return tuple(int(window) if each else 0 for each in pattern)


def _attention(ops: Ops, config: ModelConfig, index: int, x: Rows) -> Rows:
    name = f"layers.{index}"
    attended = ops.linear(attention(ops, config, index, x), [f"{name}.o"])
    return ops.norm(attended, f"{name}.post_attention_norm", residual=x)


def _feed_forward(ops: Ops, config: ModelConfig, index: int, x: Rows) -> Rows:
    name = f"layers.{index}"
    fed = ops.linear(feed_forward(ops, config, index, x), [f"{name}.down"])
    return ops.norm(fed, f"{name}.post_ffn_norm", residual=x)


GEMMA3 = Family(
    "gemma3_text",
    "gemma3",
    hf_parts=HF_PARTS
    | {
        "post_attention_norm": "post_attention_layernorm",
        "ffn_norm": "pre_feedforward_layernorm",
        "post_ffn_norm": "post_feedforward_layernorm",
    },
    norms_less_one=True,
    wraps=("gemma3",),
    usual={
        "tie_word_embeddings": True,
        "vocab_size": 262_208,
        "hidden_size": 2304,
        "intermediate_size": 9216,
        "num_hidden_layers": 26,
        "num_attention_heads": 8,
        "num_key_value_heads": 4,
        "head_dim": 256,
        "hidden_activation": "gelu_pytorch_tanh",
        "max_position_embeddings": 131_072,
        "rms_norm_eps": 1e-6,
        "rope_theta": 1e6,
        "rope_local_base_freq": 10_000.0,
        "query_pre_attn_scalar": 256,
        "sliding_window": 4096,
        "sliding_window_pattern": 6,
    },
    from_hf=_from_hf,
    from_gguf=_from_gguf,
    halves=(_attention, _feed_forward),
)
