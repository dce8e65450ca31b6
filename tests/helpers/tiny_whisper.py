"""A tiny Whisper of random numbers, by canonical names."""

from __future__ import annotations

import zlib
from typing import Any

import numpy as np

from paceline.models.config import ModelConfig
from paceline.models.families import hf_config
from paceline.models.weights import Stored

CONFIG: dict[str, Any] = {
    "model_type": "whisper",
    "vocab_size": 64,
    "d_model": 64,
    "encoder_layers": 2,
    "decoder_layers": 2,
    "encoder_attention_heads": 2,
    "decoder_attention_heads": 2,
    "encoder_ffn_dim": 96,
    "decoder_ffn_dim": 96,
    "max_source_positions": 75,
    "max_target_positions": 64,
    "num_mel_bins": 80,
}


def tiny_whisper(**changes: Any) -> ModelConfig:
    return hf_config(CONFIG | changes)


def sound(seed: int, frames: int = 150) -> np.ndarray:
    return np.random.default_rng(seed).normal(size=(frames, 80)).astype(np.float32)


class WhisperWeights:
    """`models.weights.Weights` of such a config."""

    def __init__(self, config: ModelConfig, kind: str = "F32") -> None:
        assert config.encoder is not None
        self._kind = kind
        width, ffn, mels = config.hidden_size, config.ffn_size, config.encoder.mels
        wide = mels + -mels % 32
        self._shapes: dict[str, tuple[int, ...]] = {
            "embed": (config.vocab_size, width),
            "positions": (config.max_context, width),
            "norm": (width,),
            "encoder.conv1": (width, 3 * wide),
            "encoder.conv2": (width, 3 * width),
            "encoder.positions": (config.encoder.rows, width),
            "encoder.norm": (width,),
        }
        square = (*"qkvo", *(f"look_{each}" for each in "qkvo"))
        parts = dict.fromkeys(square, (width, width)) | {"up": (ffn, width)}
        parts |= {"down": (width, ffn)} | dict.fromkeys(
            ("attention_norm", "look_norm", "ffn_norm"), (width,)
        )
        for side, layers in (("encoder.", config.encoder.layers), ("", config.layers)):
            for layer in range(layers):
                for part, shape in parts.items():
                    if not (side and part.startswith("look")):
                        self._shapes[f"{side}layers.{layer}.{part}"] = shape
        for name, shape in list(self._shapes.items()):
            if name.rpartition(".")[2] not in ("embed", "positions", "k", "look_k"):
                self._shapes[f"{name}.bias"] = shape[:1]

    def __contains__(self, name: object) -> bool:
        return name in self._shapes

    def __getitem__(self, name: str) -> np.ndarray:
        rng = np.random.default_rng(zlib.crc32(name.encode()))
        found = (rng.normal(size=self._shapes[name]) * 0.3).astype(np.float16).astype(np.float32)
        return found + 1 if name.endswith("norm") else found

    def stored(self, name: str) -> Stored:
        numbers = self[name].astype("<f4" if self._kind == "F32" else "<f2")
        shape = self._shapes[name]
        return Stored(self._kind, (shape[0], shape[1]), numbers.view(np.uint8))
