"""OLMo 2 and 3 (Team Olmo 2024, 2025): norms come after attention and feed-forward block, those of
queries and keys are over all heads. In 3 three layers in four have a window, whose positions are
not extended; GGUF files call both OLMo 2.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from paceline.errors import ModelError
from paceline.models.config import ELSEWHERE, ModelConfig
from paceline.models.families.base import HF_PARTS, Family, Get, LayerNames, heads_of
from paceline.models.ops import Ops, Rows

_PERIOD = 4
_BASE = 500_000.0


def _changes(window: int, sliding: Sequence[bool], base: float) -> dict[str, Any]:
    found = tuple(window if each else 0 for each in sliding)
    more = {"windows": found, "local_rope_base": base} if any(found) else {}
    return {"qk_norm": False, "norms_after": True, **more}


def _sliding(layers: int) -> list[bool]:
    return [(index + 1) % _PERIOD != 0 for index in range(layers)]


def _entries(config: Mapping[str, Any]) -> dict[str, Any]:
    return {"rope_theta": _BASE, **config}


def _from_hf(config: Mapping[str, Any]) -> dict[str, Any]:
    kinds, window = config.get("layer_types"), int(config.get("sliding_window") or 0)
    sliding = _sliding(int(config["num_hidden_layers"]))
    if kinds:
        sliding = [kind == "sliding_attention" for kind in kinds]
    local = (config.get("rope_parameters") or {}).get("sliding_attention") or {}
    if local.get("rope_type", "default") != "default":
        raise ModelError(f"this runtime runs no OLMo 3 with longer windows: {ELSEWHERE}")
    return _changes(window, sliding, float(local.get("rope_theta") or config["rope_theta"]))


def _from_gguf(get: Get) -> dict[str, Any]:
    window, layers = int(get("attention.sliding_window", 0)), int(get("block_count"))
    pattern = get("attention.sliding_window_pattern", None)
    sliding = _sliding(layers) if pattern is None else list(map(bool, pattern))
    base = get("rope.freq_base", 10000.0)
    return _changes(window, sliding, float(get("rope.freq_base_swa", base)))


def _attention(ops: Ops, config: ModelConfig, index: int, x: Rows) -> Rows:
    names, name = LayerNames.of(index), f"layers.{index}"
    q, k, v = (ops.linear(x, [each]) for each in names.qkv)
    q, k = ops.norm(q, f"{name}.q_norm"), ops.norm(k, f"{name}.k_norm")
    mixed = ops.attend(index, ops.concat([q, k, v]), heads_of(config, index))
    return ops.norm(ops.linear(mixed, [names.o]), f"{name}.post_attention_norm", residual=x)


def _feed_forward(ops: Ops, config: ModelConfig, index: int, x: Rows) -> Rows:
    names = LayerNames.of(index)
    fed = ops.linear(ops.gated(x, names.gate_up, activation=config.activation), [names.down])
    return ops.norm(fed, f"layers.{index}.post_ffn_norm", residual=x)


OLMO3 = Family(
    "olmo3",
    "olmo2",
    hf_parts=HF_PARTS
    | {
        "post_attention_norm": "post_attention_layernorm",
        "post_ffn_norm": "post_feedforward_layernorm",
    },
    entries=_entries,
    from_hf=_from_hf,
    from_gguf=_from_gguf,
    halves=(_attention, _feed_forward),
)

OLMO2 = replace(OLMO3, hf="olmo2", gguf="")
