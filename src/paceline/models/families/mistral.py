"""Mistral 7B and its kin (Jiang et al. 2023): Llama with a sliding window; GGUF calls it Llama."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from paceline.models.families.base import Family


def windows(config: Mapping[str, Any]) -> dict[str, Any]:
    """Return the sliding windows of the layers, which are alike."""
    window = int(config.get("sliding_window") or 0)
    return {"windows": (window,) * int(config["num_hidden_layers"])} if window else {}


MISTRAL = Family("mistral", "llama", interleaved=True, from_hf=windows)
