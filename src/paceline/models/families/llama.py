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
    usual={
        "vocab_size": 32_000,
        "hidden_size": 4096,
        "intermediate_size": 11_008,
        "num_hidden_layers": 32,
        "num_attention_heads": 32,
        "max_position_embeddings": 2048,
        "rms_norm_eps": 1e-6,
    },
    from_gguf=_from_gguf,
)
