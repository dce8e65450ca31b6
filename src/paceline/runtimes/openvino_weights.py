"""Weights as the CPU graph wants them: fused, compressed, and kept on disk for the next start."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path

import numpy as np
from safetensors import SafetensorError
from safetensors.numpy import load_file, save_file

from paceline.models.cache import cache_dir
from paceline.models.config import ModelConfig
from paceline.models.source import ModelSource
from paceline.models.weights import Weights
from paceline.runtimes.quantise import Precision, pack

_FORMAT = 2
"""Raised whenever the content of prepared files changes, so that old ones are not read."""


def prepare(config: ModelConfig, weights: Weights, precision: Precision) -> dict[str, np.ndarray]:
    """Fuse query-key-value and gate-up projections and compress all matrices.

    Embedding and LM head are int8 even at int4: they decide which token wins.
    """
    out: dict[str, np.ndarray] = {}

    def put(name: str, matrix: np.ndarray, precision: Precision = precision) -> None:
        for part, array in pack(matrix, precision).items():
            out[f"{name}.{part}"] = array

    head: Precision = "int8" if precision == "int4" else precision
    put("embed", weights["model.embed_tokens.weight"], head)
    if not config.tied_embeddings:
        put("lm_head", weights["lm_head.weight"], head)
    out["norm"] = weights["model.norm.weight"]
    for layer in range(config.layers):
        theirs, mine = f"model.layers.{layer}", f"layers.{layer}"

        def join(*names: str, prefix: str = theirs) -> np.ndarray:
            return np.concatenate([weights[f"{prefix}.{name}"] for name in names])

        projections = [f"self_attn.{kind}_proj" for kind in "qkv"]
        put(f"{mine}.qkv", join(*(f"{p}.weight" for p in projections)))
        if config.qkv_bias:
            out[f"{mine}.qkv.bias"] = join(*(f"{p}.bias" for p in projections))
        if config.qk_norm:
            out[f"{mine}.q_norm"] = weights[f"{theirs}.self_attn.q_norm.weight"]
            out[f"{mine}.k_norm"] = weights[f"{theirs}.self_attn.k_norm.weight"]
        put(f"{mine}.o", weights[f"{theirs}.self_attn.o_proj.weight"])
        put(f"{mine}.gate_up", join("mlp.gate_proj.weight", "mlp.up_proj.weight"))
        put(f"{mine}.down", weights[f"{theirs}.mlp.down_proj.weight"])
        out[f"{mine}.attention_norm"] = weights[f"{theirs}.input_layernorm.weight"]
        out[f"{mine}.ffn_norm"] = weights[f"{theirs}.post_attention_layernorm.weight"]
    return out


def load_prepared(source: ModelSource, precision: Precision) -> dict[str, np.ndarray]:
    """Prepared weights from the cache, made and stored if absent, remade if unreadable."""
    path = cache_dir() / "prepared" / f"{source.fingerprint}-{precision}-v{_FORMAT}.safetensors"
    try:
        return load_file(path)
    except (OSError, SafetensorError):
        pass  # absent, truncated or foreign: the sources are at hand, so make it again
    tensors = prepare(source.config, source.weights(), precision)
    _store(path, tensors)
    return tensors


def _store(path: Path, tensors: dict[str, np.ndarray]) -> None:
    """Write atomically; a cache that cannot be written only costs the next start time."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        handle, name = tempfile.mkstemp(dir=path.parent, suffix=".part")
        os.close(handle)
        try:
            save_file(tensors, name)
            os.replace(name, path)
        finally:
            Path(name).unlink(missing_ok=True)
    except OSError:
        return
