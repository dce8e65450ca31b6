"""Llama 2 to 3.x, and models of its shape such as SmolLM2 (Touvron et al. 2023)."""

from __future__ import annotations

from typing import Any

from paceline.models.families.base import Family, Get


def _from_gguf(get: Get) -> dict[str, Any]:
    # Mistral files are of this architecture too.
    window, layers = int(get("attention.sliding_window", 0)), int(get("block_count"))
    return {"windows": (window,) * layers} if window else {}


LLAMA = Family(
    "llama",
    "llama",
    interleaved=True,
    wraps=("idefics3", "smolvlm", "llava"),
    from_gguf=_from_gguf,
)
