"""Matrices of a model for the native kernels: as stored in its file, or at a chosen precision."""

from __future__ import annotations

import logging

import numpy as np
import numpy.typing as npt

from paceline.core.types import LogitArray
from paceline.errors import InvalidOption, ModelError
from paceline.models.gguf import quantize
from paceline.models.weights import Weights
from paceline.native.library import CMatrix
from paceline.native.packed import BLOCKS, GROUP, KINDS, PLAIN, Packed

# Block format of each precision; "file" keeps what the file has.
PRECISIONS = {"file": None, "int8": "Q8_0", "int4": "Q4_1", "fp32": "F32"}

_LOG = logging.getLogger(__name__)


def check_precision(precision: str) -> str:
    """Return `precision`; raise InvalidOption if it is unknown."""
    if precision not in PRECISIONS:
        raise InvalidOption(f"precision {precision!r} is unknown: use {', '.join(PRECISIONS)}")
    return precision


class Formats:
    """Matrices and vectors of a model by canonical name, in the formats that they run in."""

    def __init__(self, weights: Weights, precision: str) -> None:
        self._weights = weights
        self._kind = PRECISIONS[precision]
        self._told: set[str] = set()

    def vector(self, name: str) -> LogitArray | None:
        """Return a tensor as float32, or None if the model has none of that name."""
        return self._weights[name] if name in self._weights else None  # noqa: SIM401

    def required(self, name: str) -> LogitArray:
        """Return a tensor as float32; ModelError if the model has none of that name."""
        found = self.vector(name)
        if found is None:
            raise ModelError(f"the model has no tensor {name}: download it again")
        return found

    def quantized(self, name: str) -> bool:
        """Return whether a matrix takes quantized activations."""
        return self._format(self._resolved(name)) not in PLAIN

    def _resolved(self, name: str) -> str:
        return "embed" if name == "head" and name not in self._weights else name

    def _format(self, name: str) -> str:
        stored = self._weights.stored(name)
        kind = self._kind or stored.kind
        if self._kind == "Q4_1" and name in ("embed", "head"):
            kind = "Q8_0"  # they decide the argmax
        if self._kind and name.endswith(".router"):
            kind = "F32"  # so small, and it decides which experts are read
        if kind not in KINDS:
            if kind not in self._told:
                self._told.add(kind)
                _LOG.warning("weights of type %s do not run as stored: kept as fp16", kind)
            kind = "F16"
        return kind if stored.shape[1] % BLOCKS[kind] == 0 else "F32"

    def blocks(
        self, name: str, rows: npt.NDArray[np.int64] | None = None
    ) -> tuple[str, npt.NDArray[np.uint8]]:
        """Return the format of a matrix, and its rows, or some of them, as blocks of it."""
        name = self._resolved(name)
        stored, kind = self._weights.stored(name), self._format(name)
        some = slice(None) if rows is None else rows
        if kind == stored.kind:
            return kind, stored.blocks[some if stored.order is None else stored.order[some]]
        return kind, quantize(kind, self._weights[name][some])


class Matrices(Formats):
    """Packed matrices."""

    def __init__(self, weights: Weights, precision: str, packed: Packed, threads: int) -> None:
        super().__init__(weights, precision)
        self._packed = packed
        self._threads = threads
        self._matrices: dict[str, CMatrix] = {}

    def __call__(self, name: str) -> CMatrix:
        """Return a matrix, packed on first use.

        Raises:
            MemoryError: no memory for it.
            ModelError: it is damaged, or its width does not fit the kernels.
        """
        if name not in self._matrices:
            name = self._resolved(name)
        if name not in self._matrices:
            self._matrices[name] = self._pack(name)
        return self._matrices[name]

    def trim_head(self, ids: npt.NDArray[np.int64]) -> None:
        """Let the LM head have these rows alone."""
        self._matrices["head"] = self.rows("head", ids)

    def _pack(self, name: str) -> CMatrix:
        stored, kind = self._weights.stored(name), self._format(name)
        inputs = stored.shape[1]
        if inputs % GROUP:
            raise ModelError(
                f"tensor {name} has {inputs} columns, which are no multiple of {GROUP}: "
                "use --runtime torch"
            )
        as_stored = kind == stored.kind
        made = self._packed.matrix(
            kind,
            stored.blocks if as_stored else quantize(kind, self._weights[name]),
            inputs,
            order=stored.order if as_stored else None,
            bias=self.vector(f"{name}.bias"),
            threads=self._threads,
        )
        stored.forget()
        return made

    def rows(self, name: str, rows: npt.NDArray[np.int64]) -> CMatrix:
        """Return some rows of a matrix, in its own format; the whole matrix if they are all."""
        stored = self._weights.stored(self._resolved(name))
        if len(rows) == stored.shape[0]:
            return self(name)
        return self._packed.matrix(*self.blocks(name, rows), stored.shape[1], threads=self._threads)
