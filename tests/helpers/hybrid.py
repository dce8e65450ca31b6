"""A tiny hybrid model in a directory, with the tokenizer of the other tiny models."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
from tests.helpers import tiny_model

from paceline.lab.measure.fingerprint import RandomWeights
from paceline.models.config import ModelConfig
from paceline.models.families import hf_config
from paceline.models.families.qwen3_5 import QWEN3_5

ENTRIES = {
    "model_type": "qwen3_5_text",
    "vocab_size": 320,
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 4,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 32,
    "rms_norm_eps": 1e-6,
    "max_position_embeddings": 4096,
    "linear_num_key_heads": 2,
    "linear_num_value_heads": 4,
    "linear_key_head_dim": 16,
    "linear_value_head_dim": 16,
    "linear_conv_kernel_dim": 4,
    "eos_token_id": 2,
}


def config() -> ModelConfig:
    return hf_config(ENTRIES)


def save(path: Path, head: bool = False) -> Path:
    """Write the directory, with a head for more tokens or without; returns `path`."""
    shape = config()
    weights, tensors = RandomWeights(shape, ("F32",)), {}
    ends = QWEN3_5.hf_ends
    for name, theirs in ends.items():
        tensors[theirs] = 10 * weights[name] - (name == "norm") * 10
    for layer in range(shape.layers):
        for part, theirs in QWEN3_5.hf_parts.items():
            name, end = f"layers.{layer}.{part}", "" if theirs in QWEN3_5.bare else ".weight"
            delta = part.startswith("delta")
            if part == "q_gate" or delta != (layer in shape.recurrent and delta):
                continue
            values = weights[name]
            if part == "q":
                pair = [x.reshape(4, -1, 64) for x in (values, weights[f"layers.{layer}.q_gate"])]
                values = np.concatenate(pair, axis=1).reshape(-1, 64)
            if part in QWEN3_5.logarithms:
                values = np.log(-values)
            elif values.ndim == 1 and "norm" in part and part not in QWEN3_5.whole:
                values = values - 1
            elif part == "delta_conv":
                values = values[:, None]
            elif values.ndim == 2:
                values = 6 * values
            tensors[f"model.layers.{layer}.{theirs}{end}"] = np.ascontiguousarray(values)
    if head:
        rng = np.random.default_rng(4)
        for part, theirs in QWEN3_5.hf_mtp.items():
            size = (64, 128) if part == "mtp_fc" else 64
            tensors[f"{theirs}.weight"] = (0.2 * rng.standard_normal(size)).astype(np.float32)
        last = {name: each for name, each in tensors.items() if name.startswith("model.layers.3.")}
        tensors |= {name.replace("model.layers.3", "mtp.layers.0"): x for name, x in last.items()}
    tiny_model.save_directory(path, tiny_model.tiny_config(), tensors)
    (path / "config.json").write_text(json.dumps(ENTRIES), encoding="utf-8")
    return path
