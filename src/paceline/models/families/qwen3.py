"""Qwen 3 (Yang et al. 2025): normed queries and keys."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from paceline.models.families.base import Family
from paceline.models.families.qwen2 import windows


def from_hf(config: Mapping[str, Any]) -> dict[str, Any]:
    """Return what it changes in the general config."""
    return {"qk_norm": True, **windows(config)}


QWEN3 = Family("qwen3", "qwen3", from_hf=from_hf)
