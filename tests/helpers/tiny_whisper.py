"""A tiny Whisper of random numbers, by canonical names."""

from __future__ import annotations

import zlib
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import tokenizers
import torch
from transformers import WhisperConfig, WhisperForConditionalGeneration

from paceline.audio.silence import CHUNK, SpokenSound
from paceline.lab.measure.fingerprint import RandomWeights
from paceline.models.config import ModelConfig
from paceline.models.families import hf_config

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


class WhisperWeights(RandomWeights):
    """`models.weights.Weights` of such a config, whose logits are far from one another."""

    def __init__(self, config: ModelConfig, kind: str = "F32") -> None:
        super().__init__(config, (kind,))

    def _numbers(self, name: str) -> np.ndarray:
        rng = np.random.default_rng(zlib.crc32(name.encode()))
        return (rng.normal(size=self._shapes[name]) * 0.3).astype(np.float16).astype(np.float32)


def freed(engine: Any) -> bool:
    """Return whether no sound has a memory any more, but those that wait for another like them."""
    engine.hearing.forget()
    pool = engine.decoder.target._writer.pool
    return bool(pool.free == pool.blocks)


class LoudFinder:
    """An `audio.silence.SpeechFinder` that finds speech where it is loud."""

    def speech(self, sound: np.ndarray) -> SpokenSound:
        return SpokenSound(self.stream(), np.pad(sound, (0, -len(sound) % CHUNK)))

    def stream(self, sure: float = 0.5) -> Any:
        rest = np.zeros(0, np.float32)

        def feed(samples: np.ndarray) -> np.ndarray:
            nonlocal rest
            rest = np.concatenate([rest, samples])
            whole = len(rest) // CHUNK * CHUNK
            chunks, rest = rest[:whole].reshape(-1, CHUNK), rest[whole:]
            return np.abs(chunks).max(axis=1) > 0.01 if whole else np.zeros(0, np.bool_)

        return SimpleNamespace(feed=feed)


MARKS = ("endoftext", "startoftranscript", "en", "translate", "transcribe", "notimestamps")
WORDS = 40


def save_whisper(path: Path) -> Path:
    """Save one as transformers does, whose tokenizer has so many words, and times."""
    torch.manual_seed(5)
    small = {"d_model": 64, "encoder_layers": 1, "decoder_layers": 1, "vocab_size": 64}
    for side in ("encoder", "decoder"):
        small |= {f"{side}_attention_heads": 2, f"{side}_ffn_dim": 96}
    ids = {"pad_token_id": 0, "bos_token_id": WORDS, "eos_token_id": WORDS}
    more = {"decoder_start_token_id": WORDS + 1, "init_std": 0.3, "max_target_positions": 32}
    config: Any = WhisperConfig(
        **small, **ids, **more, suppress_tokens=None, begin_suppress_tokens=None
    )
    WhisperForConditionalGeneration(config).save_pretrained(path)
    words = {f"w{i}": i for i in range(WORDS)}
    core = tokenizers.Tokenizer(tokenizers.models.WordLevel(words, unk_token="w0"))
    core.add_special_tokens([f"<|{each}|>" for each in MARKS])
    core.add_tokens([f"<|{0.02 * i:.2f}|>" for i in range(64 - WORDS - len(MARKS))])
    core.save(str(path / "tokenizer.json"))
    return path
