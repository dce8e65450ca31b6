"""Checkpoints that were quantised for other engines, as types of GGUF files with the same numbers.

Matrices are read tensor by tensor as their tensors say: FP8, compressed-tensors, GPTQ, AWQ, MXFP4.
A number of theirs is a code less a zero point, times the scale of a group. That is a type of
`native.blocks` where groups are whole cells of inputs and scales are numbers of fp16 too, as those
of bfloat16 nearly always are. What is neither is read as floats, and so is FP8.
"""

from __future__ import annotations

import logging
import math
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import cache, partial
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from paceline.core.types import IntArray, LogitArray
from paceline.errors import ModelError
from paceline.models.gguf import dequantize
from paceline.models.safetensors import SafetensorsFiles
from paceline.native.blocks import GROUP, TYPES

_LOG = logging.getLogger(__name__)

Bytes = npt.NDArray[np.uint8]
Codes = npt.NDArray[Any]

_PIECE = 1 << 22  # numbers made at once: that takes several times their room
_ZEROS = {"Q4_0": 8, "Q5_0": 16, "Q8_0": 128}  # codes reach from this below zero to one less above
_AWQ_ORDER = np.array([0, 4, 1, 5, 2, 6, 3, 7])  # where a word has each of eight outputs
_FORMATS = """
dense pack-quantized int-quantized float-quantized naive-quantized mxfp4-pack-quantized
mxfp8-quantized mixed-precision
"""
_OF_ACTIVATIONS = re.compile(r"(input|output|activation|act)_(global_)?(scale|zero_point)(_inv)?")
_OF_CACHE = re.compile(r"([qkv]|kv|prob)_(scale|zero_point)")
_OF_WEIGHTS = re.compile(
    r"weight(_packed|_scale|_scale_inv|_zero_point|_shape|_g_idx)?|qweight|qzeros|scales|g_idx|bias"
)


def quantization_of(config: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return what a `config.json` says of its quantisation; empty if it says nothing."""
    inner = _dict(config.get("text_config")).get("quantization_config")
    found = config.get("quantization_config") or inner or {}
    return found if isinstance(found, Mapping) else {"quant_method": str(found)}


def check_quantization(path: Path, said: Mapping[str, Any]) -> None:
    """Raise ModelError if a quantisation is of a kind that is not read here; none at all is."""
    for what in _odd(said) if said else ():
        raise _unread(path, what)


def _odd(said: Mapping[str, Any]) -> Iterator[str]:
    # What is not read of a quantisation.
    method = str(said.get("quant_method", "of no name"))
    if method == "gptq":
        if _gptq_format(said) not in ("gptq", "gptq_v2"):
            yield f"GPTQ in format {_gptq_format(said)}"
        if any(_dict(said.get("dynamic")).values()):  # an empty one leaves a module as it was
            yield "GPTQ with settings by module ('dynamic')"
        for key in ("rotation", "adapter", "is_marlin_format"):
            if said.get(key):
                yield f"GPTQ with {key!r}"
    elif method == "awq":
        for key in ("version", "format", "checkpoint_format"):
            if str(said.get(key) or "gemm").lower() != "gemm":
                yield f"AWQ in {key} {said[key]}"
    elif method == "compressed-tensors":
        yield from _odd_compressed(said)
    elif method not in ("fp8", "mxfp4"):
        yield f"format {method}"


def _gptq_format(said: Mapping[str, Any]) -> str:
    return str(said.get("checkpoint_format") or said.get("format") or "gptq")


def _odd_compressed(said: Mapping[str, Any]) -> Iterator[str]:
    sparse = _dict(said.get("sparsity_config")).get("format", "dense")
    for form in (sparse, said.get("format") or "dense", *(g.get("format") for g in _groups(said))):
        if form is not None and form not in _FORMATS.split():
            yield f"compressed-tensors {form}"
    for key in ("transform_config", "kv_cache_scheme", "moe_sparsity_config"):
        if said.get(key):
            yield f"compressed-tensors with {key!r}"
    for group in _groups(said):
        strategy = _dict(group.get("weights")).get("strategy")
        if strategy not in (None, "tensor", "channel", "group", "block"):
            yield f"compressed-tensors of strategy {strategy}"


def _groups(said: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    return [_dict(each) for each in _dict(said.get("config_groups")).values()]


def _dict(found: object) -> Mapping[str, Any]:
    return found if isinstance(found, Mapping) else {}


def _unread(path: Path, what: str) -> ModelError:
    return ModelError(
        f"{path} is quantised as {what}, which is not read: give a GGUF file of the model, or use "
        "--runtime transformers"
    )


class Made:
    """Rows of blocks, uint8 `[rows, bytes]`, that are made when they are indexed."""

    def __init__(self, make: Callable[[IntArray], Bytes], rows: range, step: int) -> None:
        """`make` makes those of some rows, which are `rows` of a tensor; `step` of them at once."""
        self._make, self._rows, self._step = make, rows, step

    def __len__(self) -> int:
        return len(self._rows)

    def __getitem__(self, rows: slice | IntArray) -> Bytes:
        wanted = np.arange(self._rows.start, self._rows.stop, self._rows.step)[rows]
        return _in_pieces(self._make, wanted, self._step)

    def part(self, rows: slice) -> Made:
        """Return some of the rows, without making them."""
        return Made(self._make, self._rows[rows], self._step)


def _in_pieces(make: Callable[[IntArray], Codes], rows: IntArray, step: int) -> Codes:
    first = make(rows[:step])
    out = np.empty((len(rows), *first.shape[1:]), first.dtype)
    out[:step] = first
    for begin in range(step, len(rows), step):
        out[begin : begin + step] = make(rows[begin : begin + step])
    return out


class _Matrix(Protocol):
    # `shape` is a tensor's. Its rows lie one behind another, in all dimensions but the last.
    # `exact`: a type says the same numbers, unless scales have more digits than fp16.

    @property
    def shape(self) -> tuple[int, ...]: ...

    @property
    def exact(self) -> bool: ...

    def kind(self) -> str: ...

    def blocks(self, kind: str, rows: IntArray) -> Bytes: ...

    def floats(self, rows: IntArray) -> LogitArray: ...


@dataclass(frozen=True, slots=True)
class _Scaled:
    # Codes, less zero points, times scales.

    shape: tuple[int, int]
    codes: Callable[[IntArray], Codes]  # of rows, [rows, inputs]
    span: tuple[int, int] | None  # least and largest code; None for floats
    scales: Callable[[], LogitArray]  # [rows / height, groups]
    height: int
    groups: IntArray  # of the inputs
    zeros: Callable[[IntArray], Codes] | None = None  # of rows, [rows, groups]
    nibbles: Callable[[IntArray], Bytes] | None = None  # codes of four bits, two in a byte

    @property
    def exact(self) -> bool:
        return self.span is not None and self._alike(GROUP)

    def _alike(self, width: int) -> bool:
        # Whether so many inputs, one behind another, always share their scale.
        if self.shape[1] % width:
            return False
        cells = self.groups.reshape(-1, width)
        return bool((cells == cells[:, :1]).all())

    def kind(self) -> str:
        if self.span is None or not self.exact:
            return "F32"
        zeros = np.zeros(1) if self.zeros is None else self.zeros(np.arange(self.shape[0]))
        low, high = self.span[0] - int(zeros.max()), self.span[1] - int(zeros.min())
        scales = self.scales()
        with np.errstate(over="ignore"):
            half = (scales.astype(np.float16).astype(np.float32) == scales).all()
        fits = [kind for kind, zero in _ZEROS.items() if -zero <= low and high < zero]
        if half or not fits:
            return fits[0] if fits else "F32"
        return "I8_K" if self._alike(TYPES["I8_K"].inputs) else "F32"

    def blocks(self, kind: str, rows: IntArray) -> Bytes:
        if kind == "F32":
            return np.asarray(self.floats(rows).view(np.uint8))
        cells = self.groups[::GROUP]
        scales = self.scales()[rows // self.height][:, cells]
        half: Bytes = scales.astype("<f2")[..., None].view(np.uint8)
        if kind == "Q4_0" and self.nibbles is not None:
            parts = [half, _in_halves(self.nibbles(rows))]
            return np.concatenate(parts, axis=-1).reshape(len(rows), -1)
        whole = kind in ("Q8_0", "I8_K")  # then codes are signed
        codes: Bytes = self.codes(rows).astype(np.uint8).reshape(*scales.shape, GROUP)
        codes = codes + np.uint8(0 if whole else _ZEROS[kind])  # bytes wrap round, signed ones too
        if self.zeros is not None:
            codes -= self.zeros(rows).astype(np.uint8)[:, cells, None]
        if whole:
            parts = [half, codes]
            if kind == "I8_K":
                codes = codes.reshape(len(rows), -1, TYPES[kind].inputs)
                ones = np.ones((*codes.shape[:2], 16), np.uint8)
                parts = [scales[:, ::8, None].astype("<f4").view(np.uint8), ones, codes]
        else:
            fifth = np.packbits(codes >> 4, axis=-1, bitorder="little")
            four = np.bitwise_or(codes[..., :16] & 15, codes[..., 16:] << 4)
            parts = [half, fifth, four] if kind == "Q5_0" else [half, four]
        return np.concatenate(parts, axis=-1).reshape(len(rows), -1)

    def floats(self, rows: IntArray) -> LogitArray:
        width = GROUP if self._alike(GROUP) else 1
        cells = self.groups[::width]
        numbers = self.codes(rows).astype(np.float32).reshape(len(rows), -1, width)
        if self.zeros is not None:
            numbers -= self.zeros(rows).astype(np.float32)[:, cells, None]
        with np.errstate(invalid="ignore", over="ignore"):  # what is not finite stays so
            numbers *= self.scales()[rows // self.height][:, cells, None]
        return np.asarray(numbers.reshape(len(rows), -1))


@dataclass(frozen=True, slots=True)
class _Micro:
    # MXFP4: codes of four bits, two in a byte, and a power of two for each 32.

    shape: tuple[int, ...]
    nibbles: Bytes  # [rows, inputs / 2]
    powers: Bytes  # [rows, inputs / 32]
    exact: bool = True

    def kind(self) -> str:
        return "MXFP4"

    def blocks(self, kind: str, rows: IntArray) -> Bytes:
        parts = [self.powers[rows][..., None], _in_halves(self.nibbles[rows])]
        return np.concatenate(parts, axis=-1).reshape(len(rows), -1)

    def floats(self, rows: IntArray) -> LogitArray:
        return dequantize("MXFP4", self.blocks("MXFP4", rows))


def _in_halves(nibbles: Bytes) -> Bytes:
    # Bytes of numbers 2i and 2i + 1 as those of j and j + 16, which blocks have: [rows, cells, 16].
    both = nibbles.reshape(len(nibbles), -1, 2, 8)
    low, high = both[:, :, 0], both[:, :, 1]
    out = np.stack([low & 15 | high << 4, low >> 4 | high & 240], axis=-1)
    return out.reshape(*out.shape[:2], 16)


def _spread(words: Bytes, bits: int) -> Bytes:
    # Codes of words as bytes, lowest first.
    parts = [words >> shift & (1 << bits) - 1 for shift in range(0, 8, bits)]
    return np.stack(parts, axis=-1).reshape(len(words), -1)


def _across(words: Codes, rows: IntArray, bits: int, order: IntArray | None = None) -> Bytes:
    # Codes [rows, n] of words [n, words], of which each has one of some rows; `order` says where.
    each = 32 // bits
    columns, at = np.unique(rows // each, return_inverse=True)
    wide = np.ascontiguousarray(words[:, columns].T)
    places = range(each) if order is None else order.tolist()
    parts = [(wide >> bits * place).astype(np.uint8) & (1 << bits) - 1 for place in places]
    return np.stack(parts, axis=1)[at, rows % each]


@cache
def _eight_bits(kind: str) -> LogitArray:
    # Floats by their byte.
    byte = np.arange(256)
    if kind == "F8_E5M2":  # the upper half of an fp16
        return (byte << 8).astype("<u2").view("<f2").astype(np.float32)
    exponent, digits = byte >> 3 & 15, byte & 7
    size = np.ldexp(digits + 8.0 * (exponent > 0), np.maximum(exponent, 1) - 10)
    size[byte & 127 == 127] = np.nan
    return np.asarray(np.where(byte < 128, size, -size), np.float32)


class QuantisedFiles:
    """Tensors of safetensors files by the names that they had before they were quantised."""

    def __init__(self, files: SafetensorsFiles, path: Path, said: Mapping[str, Any]) -> None:
        """Read files of a directory, of which config.json says `said`.

        Raises:
            ModelError: it is quantised in a way that is not read.
        """
        check_quantization(path, said)
        self._files, self._path, self._said = files, path, said
        self._kinds: dict[str, str] = {}
        self._names = self._found(list(files.index()))

    def _found(self, names: list[str]) -> dict[str, bool]:
        # Names of tensors, and whether they are quantised.
        forms = re.compile(r"(.+)\.(weight_packed|qweight|weight_scale|weight_scale_inv)")
        bases = {found[1] for found in map(forms.fullmatch, names) if found}
        out = {f"{base}.weight": True for base in bases}
        aside = 0
        for name in names:
            base, _, end = name.rpartition(".")
            if _OF_CACHE.fullmatch(end):
                raise _unread(self._path, f"a model that rounds its cache ({name})")
            if _OF_ACTIVATIONS.fullmatch(end):
                aside += 1
            elif base in bases and not _OF_WEIGHTS.fullmatch(end):
                raise _unread(self._path, f"one with {name}")
            elif name.endswith("_blocks") and f"{name[:-7]}_scales" in self._files:
                out[name[:-7]] = True
            elif name.endswith("_scales") and f"{name[:-7]}_blocks" in self._files:
                continue
            elif base not in bases or end == "bias":
                out[name] = False
        if aside:
            _LOG.warning(
                "%d scales of activations are left aside: weights are those of the checkpoint, "
                "activations are rounded as for every model",
                aside,
            )
        return out

    @property
    def exact(self) -> bool:
        """Whether all matrices run in types that say their numbers; FP8 does not."""
        return all(self._open(name).exact for name, is_so in self._names.items() if is_so)

    def index(self) -> list[str]:
        """Return the names of all tensors."""
        return list(self._names)

    def __contains__(self, name: object) -> bool:
        return name in self._names

    def shape(self, name: str) -> tuple[int, ...]:
        return self._open(name).shape if self._names[name] else self._files.shape(name)

    def read(self, name: str, rows: slice = slice(None)) -> LogitArray:
        """Return a tensor, or some rows of all outer dimensions as one, as float32."""
        if not self._names[name]:
            return self._files.read(name, rows)
        matrix = self._open(name)
        count, step = _extent(matrix.shape)
        values = _in_pieces(matrix.floats, np.arange(count)[rows], step)
        return values.reshape(matrix.shape) if len(values) == count else values

    def stored(self, name: str) -> tuple[str, Bytes | Made]:
        """Return the type of a tensor, and its rows of blocks, made when they are asked for."""
        if not self._names[name]:
            return self._files.stored(name)
        matrix = self._open(name)
        if name not in self._kinds:
            self._kinds[name] = matrix.kind()
            if self._kinds[name] == "F32" and isinstance(matrix, _Scaled) and matrix.span:
                _LOG.warning("%s takes more memory than the file: fp32", name)
        kind = self._kinds[name]
        count, step = _extent(matrix.shape)
        return kind, Made(partial(matrix.blocks, kind), range(count), step)

    def _open(self, name: str) -> _Matrix:
        base = name.removesuffix(".weight")
        if f"{name}_blocks" in self._files:
            return self._micro(name, f"{name}_blocks", f"{name}_scales")
        if f"{base}.qweight" in self._files:
            return self._awq(base) if self._said["quant_method"] == "awq" else self._gptq(base)
        if f"{base}.weight_packed" not in self._files:
            return self._rowwise(base)
        if self._files.kind(f"{base}.weight_packed") == "U8":
            return self._micro(name, f"{base}.weight_packed", f"{base}.weight_scale")
        return self._packed(base)

    def _micro(self, name: str, blocks: str, scales: str) -> _Micro:
        nibbles, powers = self._raw(blocks, ("U8",)), self._raw(scales, ("U8", "F8_E8M0"))
        self._fit(name, nibbles.size == 16 * powers.size > 0)
        self._fit(name, nibbles.shape[: powers.ndim - 1] == powers.shape[:-1])
        rows = nibbles.size // (16 * powers.shape[-1])
        shape = (*powers.shape[:-1], GROUP * powers.shape[-1])
        return _Micro(shape, nibbles.reshape(rows, -1), powers.reshape(rows, -1))

    def _gptq(self, base: str) -> _Scaled:
        words = self._raw(f"{base}.qweight", ("I32",))
        groups = self._raw(f"{base}.g_idx", ("I32",)).astype(np.int64)
        self._fit(base, words.ndim == 2 and groups.ndim == 1 and groups.size > 0)
        bits = self._bits(base, 32 * len(words) / len(groups))

        def packed(rows: IntArray) -> Bytes:
            return np.ascontiguousarray(words[:, rows].T).view(np.uint8)

        less = int(_gptq_format(self._said) == "gptq")
        return _Scaled(
            (words.shape[1], len(groups)),
            lambda rows: _spread(packed(rows), bits),
            nibbles=packed if bits == 4 else None,
            **self._by_columns(base, words.shape[1], bits, groups, less),
        )

    def _awq(self, base: str) -> _Scaled:
        words, scales = self._raw(f"{base}.qweight", ("I32",)), self._shape(f"{base}.scales")
        self._fit(base, words.ndim == 2 and scales[0] > 0 and len(words) % scales[0] == 0)
        shape = 8 * words.shape[1], len(words)
        groups = np.arange(shape[1]) // (shape[1] // scales[0])
        return _Scaled(
            shape,
            lambda rows: _across(words, rows, 4, _AWQ_ORDER),
            **self._by_columns(base, shape[0], 4, groups, 0, _AWQ_ORDER),
        )

    def _by_columns(
        self,
        base: str,
        outputs: int,
        bits: int,
        groups: IntArray,
        less: int,
        order: IntArray | None = None,
    ) -> dict[str, Any]:
        # Scales and zero points of GPTQ and AWQ, which lie by group. The first GPTQ has one `less`
        # of each in the file, and engines disagree what the largest means.
        zeros, most = self._raw(f"{base}.qzeros", ("I32",)), (1 << bits) - 1
        shape = self._shape(f"{base}.scales")
        self._fit(base, len(shape) == 2 and shape[1] == outputs)
        self._fit(base, zeros.shape == (shape[0], outputs * bits // 32))
        self._fit(base, groups.min() >= 0 and groups.max() < shape[0])

        def zeros_of(rows: IntArray) -> Codes:
            found = _across(zeros, rows, bits, order)
            if less and (found == most).any():
                raise _unread(self._path, f"GPTQ with zero points of 0 or {most + 1} ({base})")
            return found + less

        return {
            "span": (0, most),
            "scales": cache(lambda: self._files.read(f"{base}.scales").T),
            "height": 1,
            "groups": groups,
            "zeros": zeros_of,
        }

    def _packed(self, base: str) -> _Scaled:
        # Of compressed-tensors: rows of words.
        words = self._raw(f"{base}.weight_packed", ("I32",))
        told = self._raw(f"{base}.weight_shape", ("I64", "I32"))
        self._fit(base, words.ndim == 2 and told.shape == (2,) and told[0] == len(words))
        shape = len(words), int(told[1])
        bits = next((b for b in (2, 4, 8) if -(-shape[1] * b // 32) == words.shape[1]), 0)
        bits = self._bits(base, bits or 32 * words.shape[1] / max(shape[1], 1))

        def packed(rows: IntArray) -> Bytes:
            return np.ascontiguousarray(words[rows]).view(np.uint8)

        made = self._by_rows(
            base, shape, lambda rows: _spread(packed(rows), bits)[:, : shape[1]], bits
        )
        return replace(made, nibbles=packed if bits == 4 else None)

    def _rowwise(self, base: str) -> _Scaled:
        # A code in a byte.
        kind = self._files.kind(f"{base}.weight") if f"{base}.weight" in self._files else "nothing"
        whole = self._said.get("quant_method") == "compressed-tensors"  # or two of MXFP4 in each
        if kind not in ("F8_E4M3", "F8_E5M2", *(["I8"] if whole else [])):
            raise _unread(self._path, f"{kind} with scales ({base})")
        raw = self._raw(f"{base}.weight", (kind,))
        self._fit(base, raw.ndim == 2)
        if kind == "I8":
            return self._by_rows(base, raw.shape, lambda rows: raw[rows], 0)
        made = self._by_rows(base, raw.shape, lambda rows: _eight_bits(kind)[raw[rows]], 0)
        if made.zeros is not None:
            raise _unread(self._path, f"{kind} with zero points ({base})")
        return replace(made, span=None)

    def _by_rows(
        self,
        base: str,
        shape: tuple[int, ...],
        codes: Callable[[IntArray], Codes],
        bits: int,
    ) -> _Scaled:
        # Codes of so many bits, packed, or bytes: scales lie by rows and groups, or blocks of rows.
        inverse = f"{base}.weight_scale_inv"  # which is multiplied all the same
        scale = inverse if inverse in self._files else f"{base}.weight_scale"
        by = self._shape(scale)
        by = (*by, *(1, 1)[len(by) :])
        self._fit(base, len(shape) == len(by) == 2 and 0 not in (*by, *shape))
        blocks = self._block_sizes()
        if not (shape[0] % by[0] or shape[1] % by[1]):
            blocks.append((shape[0] // by[0], shape[1] // by[1]))
        fit = [(h, w) for h, w in blocks if (-(-shape[0] // h), -(-shape[1] // w)) == by]
        self._fit(base, bool(fit))
        height, width = fit[0]
        groups = np.arange(shape[1]) // width
        if f"{base}.weight_g_idx" in self._files:
            told = self._raw(f"{base}.weight_g_idx", ("I32",)).astype(np.int64)
            self._fit(base, told.shape == groups.shape and told.max() < by[1])
            groups = groups if (told < 0).all() else told
            self._fit(base, groups.min() >= 0)
        return _Scaled(
            (shape[0], shape[1]),
            codes,
            (0, (1 << bits) - 1) if bits else (-128, 127),
            cache(lambda: self._scales(scale).reshape(by)),
            height,
            groups,
            self._zeros(base, shape[0], by, height, bits),
        )

    def _zeros(
        self, base: str, rows: int, by: tuple[int, ...], height: int, bits: int
    ) -> Callable[[IntArray], Codes] | None:
        # Zero points that lie beside; without them codes are symmetric.
        name, middle = f"{base}.weight_zero_point", 1 << bits >> 1
        found = self._raw(name, ("I32", "I8", "F8_E4M3")) if name in self._files else np.zeros(1)
        if found.dtype != np.int32 and not found.any():
            return (lambda rows: np.full((len(rows), by[1]), middle)) if bits else None
        if bits:
            self._fit(base, found.dtype == np.int32)
            self._fit(base, height == 1 and found.shape == (-(-rows * bits // 32), by[1]))
            return lambda rows: _across(found.T, rows, bits)
        self._fit(base, found.size == by[0] * by[1])
        return lambda rows: found.reshape(by)[rows // height]

    def _block_sizes(self) -> list[tuple[int, int]]:
        # Rows and columns that share a scale, as the config says.
        out = []
        told = [_dict(group.get("weights")).get("block_structure") for group in _groups(self._said)]
        for each in (self._said.get("weight_block_size"), *told):
            size = re.findall(r"\d+", str(each))  # also "128x128"
            if len(size) == 2 and "0" not in size:
                out.append((int(size[0]), int(size[1])))
        return out

    def _scales(self, name: str) -> LogitArray:
        if self._files.kind(name) not in ("U8", "F8_E8M0"):
            return self._files.read(name)
        powers = self._raw(name, ("U8", "F8_E8M0")).astype(np.int32)
        return np.ldexp(np.float32(1), powers - 127)

    def _shape(self, name: str) -> tuple[int, ...]:
        if name not in self._files:
            raise ModelError(f"{self._path} has no tensor {name}: download the model again")
        return self._files.shape(name)

    def _raw(self, name: str, kinds: tuple[str, ...]) -> Codes:
        shape = self._shape(name)
        kind, raw = self._files.stored(name)
        if kind not in kinds:
            raise _unread(self._path, f"{name} of type {kind}")
        number = {"I64": "<i8", "I32": "<i4", "I8": "i1"}.get(kind, "u1")
        return raw.view(number).reshape(shape)

    def _bits(self, base: str, bits: float) -> int:
        if bits not in (2, 4, 8):
            raise _unread(self._path, f"one of {bits:g} bits ({base})")
        return int(bits)

    def _fit(self, name: str, fits: bool) -> None:
        if not fits:
            raise ModelError(
                f"{self._path} has parts of {name} that do not fit each other: download it again"
            )


def _extent(shape: tuple[int, ...]) -> tuple[int, int]:
    # Rows in all, and those that are made at once.
    return math.prod(shape[:-1]), max(1, _PIECE // shape[-1])
