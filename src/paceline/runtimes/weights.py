"""Prepared weights of the CPU runtime: fused, compressed, and cached on disk."""

from __future__ import annotations

import logging
import zlib
from collections.abc import Mapping
from pathlib import Path
from typing import Literal

import numpy as np
from safetensors import SafetensorError, safe_open
from safetensors.numpy import save_file

from paceline.core.cache import cache_dir, unwritable, whole_file
from paceline.core.types import LogitArray
from paceline.errors import InvalidOption
from paceline.models.config import ModelConfig
from paceline.models.source import ModelSource
from paceline.models.weights import Weights
from paceline.networks.base import Network
from paceline.networks.weights import Trained

# Weight compression for the CPU runtime:

Precision = Literal["int8", "fp32", "int4"]
PRECISIONS: tuple[Precision, ...] = ("int8", "fp32", "int4")
# Columns that share a scale and a zero point.
INT4_GROUP = 32

# Compressed matrix: `weight` (float32, int8 or packed uint8), `scale` (float32), and for int4
# `zero` (float32, in steps).
Packed = dict[str, np.ndarray]


def check_precision(precision: str) -> Precision:
    """Return `precision`; raise InvalidOption if it is unknown."""
    for known in PRECISIONS:
        if precision == known:
            return known
    raise InvalidOption(f"precision {precision!r} is unknown: use {', '.join(PRECISIONS)}")


def pack(matrix: LogitArray, precision: Precision) -> Packed:
    """Compress float32 `[rows, columns]`; columns must be a multiple of 32 for int4."""
    if precision == "fp32":
        return {"weight": np.ascontiguousarray(matrix)}
    if precision == "int8":
        scale = np.abs(matrix).max(axis=1, keepdims=True) / np.float32(127)
        scale[scale == 0] = 1
        return {"weight": np.rint(matrix / scale).astype(np.int8), "scale": scale}
    return _pack_int4(matrix)


def _pack_int4(matrix: LogitArray) -> Packed:
    rows, columns = matrix.shape
    if columns % INT4_GROUP:
        raise InvalidOption(
            f"precision 'int4' needs rows of a multiple of {INT4_GROUP} weights, not {columns}: "
            "use --precision int8"
        )
    groups = matrix.reshape(rows, columns // INT4_GROUP, INT4_GROUP)
    low = groups.min(axis=2, keepdims=True)
    scale = (groups.max(axis=2, keepdims=True) - low) / np.float32(15)
    scale[scale == 0] = 1
    codes = np.clip(np.rint((groups - low) / scale), 0, 15)
    # A fractional zero point: groups that were on a grid of 16 levels (Q4_1) stay as they are.
    return {"weight": _nibbles(codes), "scale": scale, "zero": -low / scale}


def _nibbles(codes: LogitArray) -> np.ndarray:
    # Two codes per byte, the first in the low half; odd lengths are padded.
    flat = codes.astype(np.uint8).ravel()
    if len(flat) % 2:
        flat = np.append(flat, np.uint8(0))
    packed: np.ndarray = flat[0::2] | flat[1::2] << 4
    return packed


def unpack(packed: Packed, shape: tuple[int, int]) -> LogitArray:
    """Return the float32 matrix of a packed one."""
    weight = packed["weight"]
    if weight.dtype == np.float32:
        return weight
    if weight.dtype == np.int8:
        restored: LogitArray = weight.astype(np.float32) * packed["scale"]
        return restored

    def spread(data: np.ndarray, count: int) -> np.ndarray:
        return np.stack([data & 15, data >> 4], axis=1).ravel()[:count].astype(np.float32)

    scale = packed["scale"]
    codes = spread(weight, shape[0] * shape[1]).reshape(*scale.shape[:2], INT4_GROUP)
    result: LogitArray = ((codes - packed["zero"]) * scale).reshape(shape)
    return result


# Increase when the content of prepared files changes.
_FORMAT = 3

_LOG = logging.getLogger(__name__)


def prepare(config: ModelConfig, weights: Weights, precision: Precision) -> dict[str, np.ndarray]:
    """Fuse query-key-value and gate-up projections and compress all matrices.

    Embedding and LM head are int8 even at int4, since they decide the argmax.
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
    """Load prepared weights from the disk cache; make and store them if absent.

    Damaged or outdated files are made again; a cache that cannot be written is logged.
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
    # ValueError unless the tensors are those that `_store` wrote for `key`.
    with safe_open(path, "np") as file:
        metadata = file.metadata() or {}
        if metadata.get("key") != key:
            raise ValueError(f"it holds {metadata.get('key', 'something else')}")
        tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
    if metadata.get("checksum") != _checksum(tensors):
        raise ValueError("its checksum is wrong")
    return tensors


def _store(path: Path, key: str, tensors: dict[str, np.ndarray]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    with whole_file(path) as part:
        save_file(tensors, part, {"key": key, "checksum": _checksum(tensors)})


def _checksum(tensors: dict[str, np.ndarray]) -> str:
    # CRC-32 of names, types, shapes and numbers.
    crc = 0
    for name, array in sorted(tensors.items()):
        crc = zlib.crc32(f"{name} {array.dtype} {array.shape}".encode(), crc)
        crc = zlib.crc32(np.ascontiguousarray(array).data, crc)
    return f"{crc:08x}"


# A drafter network's weights as CPU runtimes take them.

Tensors = dict[str, np.ndarray]


def packed(trained: Trained, target: Mapping[str, np.ndarray], precision: str) -> Tensors:
    """Return the compressed weights of a network, shared target weights included.

    Args:
        trained: network and parameters.
        target: the target's prepared weights.
        precision: of the network's matrices: "fp32", or any other for int8.

    Returns:
        By the network's names: parameters of one axis and "slots" as they are; of matrices
        `NAME.weight` and, but for float32, `NAME.scale`. "embed" is the target's embedding, "head"
        the rows of its LM head that may be drafted.

    Raises:
        InvalidOption: the target lacks layers whose weights the network shares.
    """
    out: Tensors = {}
    for name, array in trained.parameters.items():
        if name == "slots" or array.ndim == 1:
            out[name] = array
            continue
        for part, each in pack(array, "fp32" if precision == "fp32" else "int8").items():
            out[f"{name}.{part}"] = each
    head = "embed" if "lm_head.weight" not in target else "lm_head"
    out |= _target_weights(trained.network, target)
    for part in ("weight", "scale"):
        if f"embed.{part}" in target:
            out[f"embed.{part}"] = target[f"embed.{part}"]
            out[f"head.{part}"] = np.ascontiguousarray(target[f"{head}.{part}"][trained.draft_ids])
    return out


def _target_weights(network: Network, target: Mapping[str, np.ndarray]) -> Tensors:
    out: Tensors = {}
    for mine, theirs in network.target_weights().items():
        parts = {
            mine + name.removeprefix(theirs): array
            for name, array in target.items()
            if name == theirs or name.startswith(f"{theirs}.")
        }
        if not parts:
            raise InvalidOption(
                f"network '{network.name}' runs {network.exit} layers of its target, which has "
                "fewer: use weights that were trained for this model"
            )
        out |= parts
    return out
