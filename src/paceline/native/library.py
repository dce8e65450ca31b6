"""ctypes bindings of the native library (`bindings/*.cpp`)."""

from __future__ import annotations

import ctypes
import functools
import os
from array import array
from pathlib import Path
from types import SimpleNamespace
from typing import Any, Literal

import numpy as np

from paceline.core import processor
from paceline.errors import InvalidOption, RuntimeUnavailable
from paceline.native import build

# Storage of keys and values.
KvDtype = Literal["fp32", "fp16"]


class CView(ctypes.Structure):
    """Columns of a buffer from `column` on; buffer -1 means none."""

    _fields_ = (("buffer", ctypes.c_int32), ("column", ctypes.c_int32))


class CPart(ctypes.Structure):
    _fields_ = (
        ("view", CView),
        *((name, ctypes.c_int32) for name in ("repeat", "period")),
        ("weights", ctypes.c_void_p),
    )


class CMatrix(ctypes.Structure):
    """A packed matrix, `native.packed`."""

    _fields_ = (
        *((name, ctypes.c_int64) for name in ("outputs", "inputs")),
        *((name, ctypes.c_int32) for name in ("kind", "unused")),
        *((name, ctypes.c_void_p) for name in ("tiles", "bias")),
    )


class CRouter(ctypes.Structure):
    """How scores become weights, `Router` of `kernels/experts.hpp`."""

    _fields_ = (
        *((name, ctypes.c_int32) for name in ("used", "sum_to_one", "sigmoid")),
        *((name, ctypes.c_int32) for name in ("groups", "groups_used")),
        *((name, ctypes.c_float) for name in ("factor", "eps")),
        *((name, ctypes.c_void_p) for name in ("norm", "offset")),
    )


class CConvolution(ctypes.Structure):
    """`Convolution` of `kernels/recurrence.hpp`."""

    _fields_ = (
        *((name, ctypes.c_int64) for name in ("width", "tail")),
        *((name, ctypes.c_void_p) for name in ("weights", "bias")),
        ("activated", ctypes.c_int64),
    )


class CStateHeads(ctypes.Structure):
    """`StateHeads` of `kernels/recurrence.hpp`."""

    _fields_ = (
        *((name, ctypes.c_int32) for name in ("key_heads", "value_heads", "key_width")),
        *((name, ctypes.c_int32) for name in ("value_width", "tiled", "unused")),
        ("sum", ctypes.c_int64),
        *((name, ctypes.c_void_p) for name in ("rate", "dt", "skip")),
    )


class CHeads(ctypes.Structure):
    """Attention shape, `Shape` of `kernels/attention.hpp`."""

    _fields_ = (
        *((name, ctypes.c_int32) for name in ("heads", "kv_heads", "width", "kv_dtype")),
        *((name, ctypes.c_float) for name in ("eps", "scale")),
        *((name, ctypes.c_int32) for name in ("window", "own", "rotated", "value_norm")),
    )


# Codes of `KvDtype` in C++.
KV_DTYPES: dict[KvDtype, int] = {"fp32": 0, "fp16": 1}


def attends(heads: int, kv_heads: int, width: int) -> bool:
    """Return whether native attention supports such heads."""
    return width % 16 == 0 and width <= 576 and heads <= 48 * kv_heads


class CLayer(ctypes.Structure):
    _fields_ = (
        *((name, ctypes.c_void_p) for name in ("keys", "values", "angles")),
        *((name, ctypes.c_void_p) for name in ("query_norm", "key_norm")),
        *((name, ctypes.c_void_p) for name in ("sinks", "query_factors")),
    )


_PTR, _INT, _LONG = ctypes.c_void_p, ctypes.c_int32, ctypes.c_int64
_FLOAT, _DOUBLE = ctypes.c_float, ctypes.c_double
_MATRIX, _HEADS, _LAYER = map(ctypes.POINTER, (CMatrix, CHeads, CLayer))
_PART, _ROUTER = map(ctypes.POINTER, (CPart, CRouter))
_CONVOLUTION, _STATE_HEADS = map(ctypes.POINTER, (CConvolution, CStateHeads))
_SIGNATURES = {
    "packed_bytes": (_LONG, _INT, _LONG, _LONG),
    "pack": (None, _INT, _PTR, _LONG, _PTR, _LONG, _LONG, _INT, _PTR),
    "read_rows": (None, _MATRIX, _PTR, _LONG, _PTR),
    "rotary_table": (None, _PTR, _LONG, _LONG, _DOUBLE, _PTR),
    "new": (_PTR,),
    "free": (None, _PTR),
    "buffer": (_INT, _PTR, _INT, _LONG, _INT),
    "embed": (None, _PTR, _MATRIX, _PTR, _FLOAT, _INT, CView, CView),
    "layer_norm": (None, _PTR, CView, _LONG, _PTR, _PTR, _FLOAT, CView),
    "gather": (None, _PTR, CView, _INT, _LONG, _PTR, _FLOAT, _LONG, _INT, CView, CView),
    "scatter": (None, _PTR, CView, _INT, _LONG, CView),
    "product": (None, _PTR, _MATRIX, _INT, _INT, _FLOAT, _PTR, _FLOAT, CView, CView, CView),
    "route": (None, _PTR, _ROUTER, CView, _LONG, CView),
    "mix": (None, _PTR, _MATRIX, _INT, _INT, _INT, _INT, CView, CView, CView, CView),
    "paths": (None, _PTR, _HEADS, _LONG, _INT, _INT, _INT, _INT),
    "attention": (None, _PTR, _HEADS, _LAYER, _INT, CView, CView),
    "recurrences": (None, _PTR, _INT, _INT, _INT, _INT),
    "convolve": (None, _PTR, _CONVOLUTION, CView, CView, CView),
    "scan": (None, _PTR, _STATE_HEADS, CView, CView, CView, CView),
    "load": (None, _PTR, _INT, _LONG, CView),
    "join": (None, _PTR, _INT, _PART, _PART, _LONG, CView),
    "fold": (None, _PTR, CView, _LONG, _LONG, CView),
    "pick": (None, _PTR, CView, _LONG, _PTR, _INT, _INT, _INT, _INT, CView),
    "leave": (None, _PTR, CView, _INT, _INT),
    "refine": (None, _PTR, _MATRIX, CView, _LONG, _LONG, CView),
    "clustered": (None, _PTR, _MATRIX, _LONG, _LONG, _PTR, _LONG, CView, CView, CView),
    "runs": (None, _PTR, _HEADS, _LONG, _INT, _INT, _INT, _INT, _INT, _INT),
    "attend_slots": (None, _PTR, _HEADS, _INT, CView, CView),
    "peaks": (_LONG,),
    "argmax": (None, _PTR, CView, _LONG, CView),
    "winner": (_LONG, _PTR, _LONG, _PTR, ctypes.c_char_p),
    "winner_wide": (_LONG, _PTR, _LONG, _PTR, ctypes.c_char_p),
    "best": (_LONG, _PTR, _LONG, _LONG, _LONG, _PTR, _PTR),
    "run": (ctypes.c_char_p, _PTR, _LONG, _LONG, _INT, _PTR, _PTR, _PTR),
    "ran": (_LONG, _PTR),
    "read": (_PTR, _PTR, _INT),
    "automaton_new": (_PTR, _INT),
    "automaton_free": (None, _PTR),
    "automaton_begin": (None, _PTR),
    "automaton_extend": (_INT, _PTR, _PTR, _LONG, _PTR),
    "automaton_step": (_INT, _PTR, _INT, _INT),
    "automaton_read": (None, _PTR, _INT, _INT, _PTR, _LONG, _PTR),
    "automaton_back_off": (None, _PTR, _INT, _PTR),
    "automaton_outlook": (_INT, _PTR, _INT, _INT, _INT, _INT, _PTR),
    "automaton_followers": (_INT, _PTR, _INT, _PTR),
    "automaton_followed": (_INT, _PTR, _INT),
    "automaton_count": (_INT, _PTR, _INT),
    "automaton_end": (_INT, _PTR, _INT),
    "automaton_size": (_INT, _PTR),
    "context_new": (_PTR, _INT, _INT),
    "context_copy": (_PTR, _PTR),
    "context_free": (None, _PTR),
    "context_read": (_INT, _PTR, _PTR, _LONG, _LONG, _DOUBLE),
    "context_recycle": (_INT, _PTR, _PTR, _LONG, _LONG, _PTR, _LONG),
    "context_grow": (_INT, _PTR, _PTR, _LONG, _INT, _INT, _PTR, _PTR, _PTR),
    "context_offers": (_INT, _PTR, _PTR, _LONG, _DOUBLE, _PTR, _PTR, _PTR),
    "rank_into": (None, _PTR, _LONG, _LONG, _LONG, _LONG, _PTR, _PTR),
    "grow_suffixes": (_INT, _PTR, _PTR, _PTR, _INT, _INT, _INT, _PTR, _PTR, _PTR),
    "grow_blend": (_INT, _INT, _PTR, _PTR, _INT, _INT, _INT, _PTR, _PTR, _PTR, _PTR),
    "context_look": (_INT, _PTR, _PTR, _LONG, _PTR, _PTR),
}


@functools.cache
def candidates() -> list[str]:
    """Return instruction sets to use, the best first: this processor's, or `PACELINE_ISA`.

    Raises:
        InvalidOption: that one is unknown, or the processor lacks it.
    """
    able = build.levels(processor.flags())
    forced = os.environ.get(build.FORCE)
    if forced is None:
        return [name for name in able if name != "twin"]
    if forced not in build.LEVELS:
        raise InvalidOption(
            f"instruction set {forced!r} ({build.FORCE}) is unknown: use {', '.join(build.LEVELS)}"
        )
    if forced not in able:
        raise InvalidOption(
            f"this processor lacks instruction set {forced!r} ({build.FORCE}): use "
            f"{', '.join(able)}"
        )
    return [forced]


@functools.cache
def found() -> tuple[str, Path] | None:
    """Return the instruction set in use and its library; None if there is none.

    Raises:
        InvalidOption: as for `candidates`.
    """
    if os.environ.get(build.SWITCH) == "0":
        return None
    paths = ((level, build.library(level)) for level in candidates())
    return next(((level, path) for level, path in paths if path is not None), None)


@functools.cache
def library() -> ctypes.CDLL | None:
    """Return the loaded library, or None if it cannot be built."""
    place = found()
    if place is None:
        return None
    loaded = ctypes.CDLL(str(place[1]))
    for name, (result, *arguments) in _SIGNATURES.items():
        function = getattr(loaded, f"paceline_{name}")
        function.restype, function.argtypes = result, arguments
    return loaded


@functools.cache
def calls(prefix: str) -> SimpleNamespace:
    """Return functions with this name prefix, by the rest of their names.

    They hold Python's lock: they are short, and taking the lock back may take long.

    Raises:
        RuntimeUnavailable: there is no library.
    """
    loaded = library()
    if loaded is None:
        raise RuntimeUnavailable("there are no native kernels: install g++ or pip install ziglang")
    found = SimpleNamespace()
    for name, (result, *arguments) in _SIGNATURES.items():
        if name.startswith(prefix):
            kind = ctypes.PYFUNCTYPE(result, *arguments)  # type: ignore[arg-type]  # None too
            setattr(found, name.removeprefix(prefix), kind((f"paceline_{name}", loaded)))
    return found


def address(numbers: np.ndarray | array[Any]) -> int:
    """Return the address of an array. For writable ones faster than `numbers.ctypes`."""
    if isinstance(numbers, array):
        return numbers.buffer_info()[0]
    try:
        return ctypes.addressof(ctypes.c_char.from_buffer(numbers.data))
    except (TypeError, ValueError):
        return int(numbers.ctypes.data)
