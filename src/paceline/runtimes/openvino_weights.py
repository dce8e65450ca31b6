"""Weights as the CPU graph wants them: fused, compressed, and kept on disk for the next start."""

from __future__ import annotations

import logging
import zlib
from pathlib import Path

import numpy as np
from safetensors import SafetensorError, safe_open
from safetensors.numpy import save_file

from paceline.models.cache import cache_dir, unwritable
from paceline.models.config import ModelConfig
from paceline.models.source import ModelSource
from paceline.models.weights import Weights
from paceline.models.whole_file import whole_file
from paceline.runtimes.quantise import Precision, pack

_FORMAT = 3
"""Raised whenever the content of prepared files changes, so that old ones are not read."""

_LOG = logging.getLogger(__name__)


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
    """Prepared weights from the cache, made and stored if absent.

    A file that is truncated, damaged or of another making is made again, and a cache that cannot
    be written only costs the next start time; either is logged in one line.
    """
    key = f"{source.fingerprint}-{precision}-v{_FORMAT}"
    path = cache_dir() / "prepared" / f"{key}.safetensors"
    try:
        return _read(path, key)
    except (FileNotFoundError, NotADirectoryError):
        pass
    except (OSError, SafetensorError, ValueError) as error:
        _LOG.warning("prepared weights in %s are unusable (%s): making them again", path, error)
    tensors = prepare(source.config, source.weights(), precision)
    try:
        _store(path, key, tensors)
    except (OSError, SafetensorError) as error:  # the latter wraps the system's while writing
        reason = error if isinstance(error, OSError) else OSError(str(error))
        _LOG.warning("the next start will not be faster: %s", unwritable(path.parent, reason))
    return tensors


def _read(path: Path, key: str) -> dict[str, np.ndarray]:
    """The tensors of a file; ValueError if they are not those that `_store` put there as `key`."""
    with safe_open(path, "np") as file:
        metadata = file.metadata() or {}
        if metadata.get("key") != key:
            raise ValueError(f"it holds {metadata.get('key', 'something else')}")
        tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
    if metadata.get("checksum") != _checksum(tensors):
        raise ValueError("its checksum is wrong")
    return tensors


def _store(path: Path, key: str, tensors: dict[str, np.ndarray]) -> None:
    """Write atomically; nothing is left behind where that fails."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with whole_file(path) as part:
        save_file(tensors, part, {"key": key, "checksum": _checksum(tensors)})


def _checksum(tensors: dict[str, np.ndarray]) -> str:
    """CRC-32 of names, types, shapes and numbers; about 4 GB a second."""
    crc = 0
    for name, array in sorted(tensors.items()):
        crc = zlib.crc32(f"{name} {array.dtype} {array.shape}".encode(), crc)
        crc = zlib.crc32(np.ascontiguousarray(array).data, crc)
    return f"{crc:08x}"
