"""SmolLM3 (Bakouch et al. 2025): every fourth layer has no positions."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from paceline.models.families.base import Family, Get
from paceline.models.families.qwen2 import windows

_INTERVAL = 4


def _without(layers: int, interval: int) -> tuple[int, ...]:
    return tuple(index for index in range(layers) if (index + 1) % interval == 0)


def _from_hf(config: Mapping[str, Any]) -> dict[str, Any]:
    layers, rotated = int(config["num_hidden_layers"]), config.get("no_rope_layers")
    found = _without(layers, int(config.get("no_rope_layer_interval", _INTERVAL)))
    if rotated:  # says 1 of layers with positions
        found = tuple(index for index, each in enumerate(rotated) if not each)
    return {"no_positions": found, **windows(config)}


def _from_gguf(get: Get) -> dict[str, Any]:
    return {"no_positions": _without(int(get("block_count")), _INTERVAL)}


SMOLLM3 = Family("smollm3", "smollm3", interleaved=True, from_hf=_from_hf, from_gguf=_from_gguf)
