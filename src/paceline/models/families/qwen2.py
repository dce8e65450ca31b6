"""Qwen 2 and 2.5 (Yang et al. 2024): biased query, key and value projections."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from paceline.models.families.base import Family


def windows(config: Mapping[str, Any]) -> dict[str, Any]:
    """Return the sliding windows of the layers from `max_window_layers` on, if they are used."""
    window = int(config.get("sliding_window") or 0)
    if not config.get("use_sliding_window") or not window:
        return {}
    if config.get("layer_types"):
        kinds = config["layer_types"]
        return {"windows": tuple(window if each == "sliding_attention" else 0 for each in kinds)}
    layers, first = int(config["num_hidden_layers"]), int(config.get("max_window_layers", 0))
    return {"windows": tuple(window if each >= first else 0 for each in range(layers))}


def _from_hf(config: Mapping[str, Any]) -> dict[str, Any]:
    return {"qkv_bias": True, **windows(config)}


QWEN2 = Family("qwen2", "qwen2", from_hf=_from_hf)
