"""gpt-oss (OpenAI 2025, arXiv:2508.10925): experts with biases and a clamped gate, attention sinks.

Every second layer has a window. `models.stacked` says how checkpoints hold the experts, of four
bits in those that are published.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from paceline.errors import ModelError
from paceline.models.config import ELSEWHERE, yarn
from paceline.models.families.base import GGUF_PARTS, HF_PARTS, Family, Get
from paceline.models.families.experts import HALVES, parts_of
from paceline.models.ops import Experts

# What `Ops.gated` computes, by its names in configs.
_GATE = {"swiglu_limit": 7.0, "swiglu_alpha": 1.702}
# Of configs that say nothing; the model was trained without rounding where blending begins.
_BASE, _WHOLE = 150_000.0, {"truncate": False}
_ROPE = {"rope_type": "yarn", "factor": 32.0, "original_max_position_embeddings": 4096, **_WHOLE}


def _entries(config: Mapping[str, Any]) -> dict[str, Any]:
    rope = config.get("rope_parameters") or config.get("rope_scaling") or _ROPE
    return {"rope_theta": _BASE, **config, "rope_parameters": rope}


def _shared(windows: tuple[int, ...], count: int, used: int) -> dict[str, Any]:
    return {
        "qkv_bias": True,
        "sinks": True,
        "activation": "clamped",
        "windows": windows if any(windows) else (),
        "experts": Experts(count, used, True),  # a softmax of those that are used
    }


def _windows(layers: int, window: int) -> tuple[int, ...]:
    return tuple(0 if index % 2 else window for index in range(layers))


def _from_hf(config: Mapping[str, Any]) -> dict[str, Any]:
    for name, usual in _GATE.items():
        if config.get(name, usual) != usual:
            raise ModelError(
                f"this runtime runs gpt-oss with {name} {usual} alone, not {config[name]}: "
                f"{ELSEWHERE}"
            )
    layers, window = int(config["num_hidden_layers"]), int(config.get("sliding_window") or 0)
    kinds, windows = config.get("layer_types"), _windows(layers, window)
    if kinds:
        windows = tuple(window if kind == "sliding_attention" else 0 for kind in kinds)
    return _shared(windows, int(config["num_local_experts"]), int(config["num_experts_per_tok"]))


def _from_gguf(get: Get) -> dict[str, Any]:
    layers, window = int(get("block_count")), int(get("attention.sliding_window", 0))
    experts = int(get("expert_count")), int(get("expert_used_count"))
    out = _shared(_windows(layers, window), *experts)
    if get("rope.scaling.type", "none") == "yarn":
        rope = {
            "factor": get("rope.scaling.factor"),
            "original_max_position_embeddings": get("rope.scaling.original_context_length"),
            **_WHOLE,
        }
        rotated = int(get("rope.dimension_count", get("attention.key_length", 64)))
        out["rope_divisors"], _ = yarn(rope, float(get("rope.freq_base", _BASE)), rotated)
    return out


GPT_OSS = Family(
    "gpt_oss",
    "gpt-oss",
    hf_parts=HF_PARTS
    | parts_of("mlp.router", "mlp.experts.{}", ("gate_proj", "up_proj", "down_proj"))
    | {"sinks": "self_attn.sinks"},
    gguf_parts=GGUF_PARTS
    | parts_of("ffn_gate_inp", "ffn_{}_exps")
    | {"sinks": "attn_sinks", "ffn_norm": "post_attention_norm"},
    bare=("self_attn.sinks",),
    stacked=True,
    entries=_entries,
    from_hf=_from_hf,
    from_gguf=_from_gguf,
    halves=HALVES,
)
