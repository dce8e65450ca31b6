"""Qwen 3 (Yang et al. 2025): normed queries and keys."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from paceline.models.families.base import Family
from paceline.models.families.qwen2 import windows


def _from_hf(config: Mapping[str, Any]) -> dict[str, Any]:
    return {"qk_norm": True, **windows(config)}


QWEN3 = Family("qwen3", "qwen3", from_hf=_from_hf)
