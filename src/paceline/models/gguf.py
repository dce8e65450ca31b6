"""GGUF reader: metadata, and tensors under their Hugging Face names.

The header is parsed here, since the package's `GGUFReader` makes a numpy array of every vocabulary
string, which is slow. The package decodes the block formats.
"""

from __future__ import annotations

import hashlib
import mmap
import struct
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from paceline.core.types import LogitArray
from paceline.errors import ModelError
from paceline.models.config import ModelConfig

_SCALARS = {
    0: "B",
    1: "b",
    2: "H",
    3: "h",
    4: "I",
    5: "i",
    6: "f",
    7: "?",
    10: "Q",
    11: "q",
    12: "d",
}
_STRING, _ARRAY = 8, 9
_U64 = struct.Struct("<Q")
_SAMPLE = 4096  # bytes of each tensor that enter the fingerprint


@dataclass(frozen=True, slots=True)
class TensorInfo:
    """Shape of a tensor (outer dimension first), block format, offset in the file."""

    shape: tuple[int, ...]
    kind: int
    offset: int


class GGUFFile:
    """A memory-mapped GGUF file: metadata (arrays as lists of strings or numpy arrays), tensors.

    Raises:
        ModelError: not a GGUF file, or a damaged one.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        try:
            with path.open("rb") as file:
                self._data = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
        except OSError as error:
            raise ModelError(
                f"cannot read {path} ({error.strerror}): give the path of a model file"
            ) from error
        except ValueError as error:  # an empty file cannot be mapped
            raise self._damaged("it is empty") from error
        if self._data[:4] != b"GGUF":
            raise ModelError(f"{path} is not a GGUF file: give a .gguf or a model directory")
        try:
            self.metadata, self.tensors, self._header_end = _Header(self._data).read()
        except (struct.error, ValueError, OverflowError, MemoryError) as error:
            raise self._damaged(str(error)) from error

    @cached_property
    def config(self) -> ModelConfig:
        """The model's config; raises ModelError for unsupported families."""
        shapes = {name: info.shape for name, info in self.tensors.items()}
        divisors = None
        if "rope_freqs.weight" in self.tensors:
            divisors = tuple(self.read("rope_freqs.weight").tolist())
        return ModelConfig.from_gguf(self.metadata, shapes, divisors)

    @cached_property
    def fingerprint(self) -> str:
        # Hash of the header, the size and a sample of every tensor.
        digest = hashlib.sha256(str(len(self._data)).encode())
        digest.update(self._data[: self._header_end])
        for info in self.tensors.values():
            digest.update(self._data[info.offset : info.offset + _SAMPLE])
        return digest.hexdigest()[:16]

    def read(self, name: str) -> LogitArray:
        """Return a tensor by its GGUF name, dequantized to float32.

        Raises:
            ModelError: the tensor is truncated or its format is unknown.
        """
        import gguf

        info = self.tensors[name]
        try:
            kind = gguf.GGMLQuantizationType(info.kind)
            block, size = gguf.GGML_QUANT_SIZES[kind]
            *outer, inner = info.shape
            row = inner // block * size
            count = int(np.prod(outer)) * row
            raw = np.frombuffer(self._data, np.uint8, count, info.offset).reshape(*outer, row)
            values = gguf.dequantize(raw, kind)
        except (ValueError, KeyError) as error:
            raise self._damaged(f"tensor {name}: {error}") from error
        except NotImplementedError as error:
            raise ModelError(
                f"{self.path} stores {name} as {kind.name}, which cannot be read: "
                "choose another quantisation of the model"
            ) from error
        return np.require(values, np.float32, ["C", "W"]).reshape(info.shape)

    def _damaged(self, reason: str) -> ModelError:
        return ModelError(f"{self.path} is damaged ({reason}): download it again")


class GGUFWeights:
    """Tensors of a GGUF file under Hugging Face names, float32."""

    def __init__(self, file: GGUFFile) -> None:
        self._file = file
        self._heads: dict[str, int] = {}
        if file.metadata.get("general.architecture") == "llama":
            self._heads = {"attn_q": file.config.heads, "attn_k": file.config.kv_heads}

    def __contains__(self, name: object) -> bool:
        return isinstance(name, str) and _gguf_name(name) in self._file.tensors

    def __getitem__(self, name: str) -> LogitArray:
        known = _gguf_name(name)
        if known not in self._file.tensors:
            raise ModelError(f"{self._file.path} has no tensor {name}: download the model again")
        values = self._file.read(known)
        heads = self._heads.get(known.split(".")[-2])
        if heads is None:
            return values
        # llama files interleave rotary halves of query and key rows; Qwen files do not.
        pairs = values.reshape(heads, -1, 2, *values.shape[1:])
        return np.ascontiguousarray(pairs.swapaxes(1, 2)).reshape(values.shape)


_PARTS = {
    "input_layernorm": "attn_norm",
    "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output",
    "self_attn.q_norm": "attn_q_norm",
    "self_attn.k_norm": "attn_k_norm",
    "post_attention_layernorm": "ffn_norm",
    "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down",
}
_TOP = {
    "model.embed_tokens.weight": "token_embd.weight",
    "model.norm.weight": "output_norm.weight",
    "lm_head.weight": "output.weight",
}


def _gguf_name(name: str) -> str:
    if name in _TOP:
        return _TOP[name]
    prefix, _, rest = name.removeprefix("model.layers.").partition(".")
    part, _, kind = rest.rpartition(".")
    return f"blk.{prefix}.{_PARTS[part]}.{kind}" if part in _PARTS else ""


class _Header:
    def __init__(self, data: mmap.mmap) -> None:
        self._data = data
        self._at = 4

    def read(self) -> tuple[Mapping[str, Any], Mapping[str, TensorInfo], int]:
        version = self._scalar("I")
        if version not in (2, 3):
            raise ValueError(f"unknown version {version}")
        tensor_count, pair_count = self._scalar("Q"), self._scalar("Q")
        metadata: dict[str, Any] = {}
        for _ in range(pair_count):
            key = self._strings(1)[0]
            metadata[key] = self._value(self._scalar("I"))
        places: dict[str, TensorInfo] = {}
        for _ in range(tensor_count):
            name = self._strings(1)[0]
            sizes = [self._scalar("Q") for _ in range(self._scalar("I"))]
            places[name] = TensorInfo(tuple(reversed(sizes)), self._scalar("I"), self._scalar("Q"))
        alignment = int(metadata.get("general.alignment", 32))
        if alignment < 1:
            raise ValueError("its alignment is not positive")
        start = -(-self._at // alignment) * alignment
        tensors = {
            name: TensorInfo(info.shape, info.kind, start + info.offset)
            for name, info in places.items()
        }
        if any(info.offset >= len(self._data) for info in tensors.values()):
            raise ValueError("it ends before its tensors do")
        return metadata, tensors, self._at

    def _scalar(self, kind: str) -> Any:
        (value,) = struct.unpack_from("<" + kind, self._data, self._at)
        self._at += struct.calcsize("<" + kind)
        return value

    def _value(self, kind: int) -> Any:
        if kind == _STRING:
            return self._strings(1)[0]
        if kind == _ARRAY:
            return self._array(self._scalar("I"), self._scalar("Q"))
        if kind not in _SCALARS:
            raise ValueError(f"unknown value type {kind}")
        return self._scalar(_SCALARS[kind])

    def _array(self, kind: int, count: int) -> Any:
        if kind == _STRING:
            return self._strings(count)
        if kind not in _SCALARS:
            raise ValueError(f"unknown array type {kind}")
        values = np.frombuffer(self._data, "<" + _SCALARS[kind], count, self._at)
        self._at += values.nbytes
        return values

    def _strings(self, count: int) -> list[str]:
        # Vocabularies make this the hot loop of opening a file, hence the local names.
        data, at, unpack, out = self._data, self._at, _U64.unpack_from, []
        for _ in range(count):
            end = at + 8 + unpack(data, at)[0]
            out.append(data[at + 8 : end].decode("utf-8", "replace"))
            at = end
        if at > len(data):
            raise ValueError("it ends inside its header")
        self._at = at
        return out
