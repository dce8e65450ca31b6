"""A conformer whose rows see their chunk and so many rows before it, in NumPy and on the CPU.

Look-ahead is that of a chunk: it does not grow with the layers. A layer keeps the keys of rows, and
the last inputs of its convolution, which reads no later row. So a chunk is computed once.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from functools import cache
from pathlib import Path
from typing import Any, Protocol

import numpy as np

from paceline.core.options import require
from paceline.core.target import Rows
from paceline.core.types import BoolArray, LogitArray
from paceline.errors import InvalidOption, ModelError
from paceline.models.ops import Heads, Ops, Rotary
from paceline.models.safetensors import SafetensorsFiles
from paceline.models.weights import Stored
from paceline.native.library import CHeads
from paceline.native.packed import Packed
from paceline.native.program import Program
from paceline.runtimes.cpu.forward import ForwardBatch
from paceline.runtimes.cpu.matrices import Formats, Matrices
from paceline.runtimes.cpu.ops import CpuOps
from paceline.runtimes.kv_cache import BLOCK, BlockPool, PagedCache
from paceline.runtimes.reference.formats import matrix
from paceline.runtimes.reference.ops import AskedRows, ReferenceCache, ReferenceOps
from paceline.runtimes.states import SequenceState, StateShape

STACKED = 4
"""Log-mel frames in a row, of 40 ms: a letter is shorter than the paper's word pieces of 80 ms."""

EPS = 1e-5
LETTERS = " 'abcdefghijklmnopqrstuvwxyz"
BLANK = len(LETTERS)
_CLASSES = 32  # of the head, whole groups; those behind the blank are never right
_STREAMS = 8  # beside one another


@dataclass(frozen=True, slots=True)
class ConformerShape:
    """Sizes; `left` rows are seen before a chunk, a multiple of every chunk's length."""

    width: int = 128
    layers: int = 4
    heads: int = 4
    ffn: int = 512
    taps: int = 8
    left: int = 56
    mels: int = 80
    longest: int = 8192

    def __post_init__(self) -> None:
        for name, value in asdict(self).items():
            require(1 <= value <= 1 << 16, name, value, "from 1 to 65536")
        require(self.width % (16 * self.heads) == 0, "width", self.width, "16 times heads, or more")
        require(2 <= self.taps <= 8, "taps", self.taps, "2 to 8")

    @property
    def attention(self) -> Heads:
        width = self.width // self.heads
        frequencies = tuple(10_000.0 ** (-2 * at / width) for at in range(width // 2))
        return Heads(self.heads, self.heads, width, 1 / math.sqrt(width), Rotary(frequencies))

    def tensors(self) -> dict[str, tuple[int, ...]]:
        """Return the shape of every tensor by name."""
        width = self.width
        found: dict[str, tuple[int, ...]] = {
            "stack": (width, STACKED * self.mels),
            "stack.bias": (width,),
            "head": (_CLASSES, width),
            "head.bias": (_CLASSES,),
        }
        for layer in range(self.layers):
            name = f"layers.{layer}"
            for half in ("first", "second"):
                found |= {f"{name}.{half}_up": (self.ffn, width)}
                found |= {f"{name}.{half}_down": (width, self.ffn)}
            for part in ("q", "k", "v", "o", "conv_in", "conv_gate", "conv_o"):
                found[f"{name}.{part}"] = (width, width)
            found[f"{name}.conv_taps"] = (width, self.taps)
            for norm in ("first", "attention", "conv", "taps", "second", "last"):
                found |= {f"{name}.{norm}_norm{end}": (width,) for end in ("", ".bias")}
        return found


def encoder(ops: Ops, shape: ConformerShape, rows: Any) -> Any:
    """Return logits of letters and the blank of rows `[STACKED * mels]`."""
    x = ops.linear(rows, ["stack"])
    for layer in range(shape.layers):
        name = f"layers.{layer}"
        x = _half(ops, f"{name}.first", x)
        qkv = ops.linear(x, [f"{name}.{part}" for part in "qkv"], norm=f"{name}.attention_norm")
        x = ops.linear(ops.attend(layer, qkv, shape.attention), [f"{name}.o"], residual=x)
        read = ops.norm(x, f"{name}.conv_norm")
        gated = ops.gate(*(ops.linear(read, [f"{name}.conv_{part}"]) for part in ("in", "gate")))
        mixed = ops.convolve(layer, gated, f"{name}.conv_taps", activated=False)
        mixed = ops.silu(ops.norm(mixed, f"{name}.taps_norm"))
        x = ops.linear(mixed, [f"{name}.conv_o"], residual=x)
        x = ops.norm(_half(ops, f"{name}.second", x), f"{name}.last_norm")
    return ops.linear(x, ["head"])


def _half(ops: Ops, name: str, x: Any) -> Any:
    inner = ops.silu(ops.linear(x, [f"{name}_up"], norm=f"{name}_norm"))
    return ops.linear(inner, [f"{name}_down"], scale=0.5, residual=x)


def sight(begin: int, end: int, chunk: int, left: int) -> BoolArray:
    """Return what rows from `begin` to `end` see, `[rows, end]`; the last chunk may be cut."""
    at, seen = np.arange(begin, end)[:, None] // chunk * chunk, np.arange(end)
    found: BoolArray = (seen >= at - left) & (seen < at + chunk)
    return found


class Numbers:
    """`models.weights.Weights` of arrays by name."""

    def __init__(self, tensors: Mapping[str, LogitArray]) -> None:
        self.tensors = tensors

    def __contains__(self, name: object) -> bool:
        return name in self.tensors

    def __getitem__(self, name: str) -> LogitArray:
        return np.array(self.tensors[name], np.float32)

    def stored(self, name: str) -> Stored:
        values = np.ascontiguousarray(self.tensors[name], np.float32)
        return Stored("F32", (values.shape[0], values.shape[1]), values.view(np.uint8))


class Conformer(Protocol):
    """An encoder on a runtime."""

    shape: ConformerShape

    def open(self) -> Any:
        """Return the cache of an empty stream; OutOfMemory beside too many others."""
        ...

    def forward(self, cache: Any, rows: LogitArray, sees: BoolArray) -> LogitArray:
        """Return logits `[n, classes]` of the next rows, and keep them.

        `sees` is bool `[n, past + n]`.
        """
        ...

    def close(self, cache: Any) -> None: ...


class ReferenceConformer:
    """In NumPy, in the canonical arithmetic."""

    def __init__(self, shape: ConformerShape, weights: Numbers) -> None:
        self.shape, self._formats = shape, Formats(weights, "fp32")
        self._matrix = cache(lambda name: matrix(*self._formats.blocks(name)))

    def open(self) -> ReferenceCache:
        heads = self.shape.attention
        return ReferenceCache(
            np.zeros((self.shape.layers, 2, 0, heads.kv_heads, heads.width), np.float32)
        )

    def forward(self, cache: ReferenceCache, rows: LogitArray, sees: BoolArray) -> LogitArray:
        asked = _asked(cache, rows, sees)
        ops = ReferenceOps(self._formats, self._matrix, EPS, AskedRows(asked), asked)
        out: LogitArray = encoder(ops, self.shape, rows)
        cache.length += len(rows)
        cache.keep(0)
        return out[:, : BLANK + 1]

    def close(self, cache: ReferenceCache) -> None: ...


class CpuConformer:
    """By native kernels, as one program."""

    def __init__(self, shape: ConformerShape, weights: Numbers, threads: int = 1) -> None:
        self.shape, self._threads = shape, threads
        heads, packed = shape.attention, Packed()
        kept = (shape.taps - 1) * shape.width
        state = StateShape(shape.layers, shape.width, kept, 0, shape.width)
        blocks = _STREAMS * -(-shape.longest // BLOCK)
        sizes = shape.layers, heads.kv_heads, heads.width, blocks
        self._pool = BlockPool(*sizes, keep=0, dtype=np.float32, state=state)
        self._matrices = Matrices(weights, "fp32", packed, threads)
        c_heads = CHeads(heads.heads, heads.kv_heads)
        self._program = Program(packed, c_heads, shape.longest)
        ops = CpuOps(self._program, self._matrices, self._pool, EPS)
        self._program.paths("rows")
        ops.records = self._program.buffer("nodes", state.record_size)
        self._program.recurrences(shape.taps)
        given = self._program.buffer("rows", STACKED * shape.mels)
        self._program.load("given", given)
        self._made = encoder(ops, shape, ops.given(given, "rows"))
        self._out = self._made.columns()

    def open(self) -> PagedCache:
        assert self._pool.states is not None
        return PagedCache(self._pool, state=SequenceState(self._pool.states))

    def forward(self, cache: PagedCache, rows: LogitArray, sees: BoolArray) -> LogitArray:
        batch, _ = ForwardBatch.of([_asked(cache, rows, sees)])
        bits = np.ascontiguousarray(rows, np.float32).reshape(-1).view(np.int32)
        self._program.run(batch.counts(), batch.inputs() | {"given": bits}, self._threads)
        assert cache.state is not None
        cache.state.keep(np.zeros((0, cache.state.pool.shape.record_size), np.float32), ())
        cache.length += len(rows)
        return self._program.read(self._out, len(rows))[:, : BLANK + 1].copy()

    def close(self, cache: PagedCache) -> None:
        cache.release()


def _asked(cache: Any, rows: LogitArray, sees: BoolArray) -> Rows:
    past, count = cache.length, len(rows)
    known = sees[:, :past]
    places = np.where(known, np.arange(past), past)
    places.sort(axis=1)
    places = places[:, : known.sum(axis=1).max(initial=0)]
    places = np.where(places < past, places, -1)
    at = past + np.arange(count)
    own = np.ascontiguousarray(sees[:, past:])
    return Rows.block(cache, at * 0, at, own, cached=places, num_new=count, wanted=at[:0])


def load_conformer(path: Path) -> tuple[ConformerShape, Numbers]:
    """Read a file of `paceline train conformer`; ModelError if it is none."""
    try:
        if not path.is_file():
            raise ValueError
        files = SafetensorsFiles(path)
        told = {name: int(files.metadata[name]) for name in asdict(ConformerShape())}
        shape = ConformerShape(**told)
    except (KeyError, TypeError, ValueError, InvalidOption) as error:
        why = f" ({error})" if isinstance(error, InvalidOption) else ""
        raise ModelError(
            f"{path} is no conformer{why}: train one by paceline train conformer"
        ) from error
    found = {name: files.read(name) for name in files.index()}
    if {name: each.shape for name, each in found.items()} != shape.tensors():
        raise ModelError(f"{path} has other tensors than it says: train it again")
    return shape, Numbers(found)
