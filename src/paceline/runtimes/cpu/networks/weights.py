"""Weights of a drafter network for the native kernels, those shared with the target included."""

from __future__ import annotations

import numpy as np

from paceline.core.types import LogitArray
from paceline.errors import InvalidOption
from paceline.models.gguf import quantize
from paceline.native.library import CMatrix
from paceline.native.packed import GROUP, Packed
from paceline.networks.base import fused_of
from paceline.networks.head_preview import SCREEN
from paceline.networks.weights import Trained
from paceline.runtimes.cpu.matrices import Matrices

# Parts of the names of feed-forward matrices, which are int4: drafters read few weights often.
_NARROW = {"gate_up", "up", "down"}


class NetworkWeights:
    """Packed matrices and vectors by the network's names; "embed" and "head" are the target's."""

    def __init__(self, trained: Trained, target: Matrices, precision: str, packed: Packed) -> None:
        """Bind them; `precision` "fp32" keeps parameters as they are, any other makes int8 or int4.

        Raises:
            InvalidOption: the target lacks layers whose weights the network shares.
        """
        self._trained, self._target, self._packed = trained, target, packed
        self._exact = precision == "fp32"
        self._shared = trained.network.target_weights()
        self._known: dict[str, list[CMatrix]] = {}
        for theirs in self._shared.values():
            if theirs.endswith("norm") and target.vector(theirs) is None:
                raise InvalidOption(
                    f"network '{trained.network.name}' runs layers of its target that are not "
                    "there: use weights that were trained for this model"
                )

    @property
    def previews(self) -> bool:
        return self._trained.head_preview is not None

    def vector(self, name: str) -> LogitArray:
        """Return a norm's weights, or another parameter that is no matrix, as float32."""
        if name in self._shared:
            found = self._target.vector(self._shared[name])
            assert found is not None
            return found
        return self._trained.parameters[name]

    def matrices(self, name: str, halves: bool = False) -> list[CMatrix]:
        """Return a matrix, packed on first use; `halves` are a gate and what it gates."""
        if name not in self._known:
            self._known[name] = self._pack(name, halves)
        return self._known[name]

    def _pack(self, name: str, halves: bool) -> list[CMatrix]:
        if name == "embed":
            return [self._target(name)]
        if name == "head":
            return [self._target.rows(name, self._trained.draft_ids)]
        if name in self._shared:
            return [self._target(each) for each in fused_of(self._shared[name])]
        kind = "F32" if self._exact else "Q8_0"
        if name in SCREEN:
            preview = self._trained.head_preview
            assert preview is not None
            more = -preview.up.shape[1] % GROUP  # of the rank, to whole groups
            if name == SCREEN[0]:
                return [self._matrix(kind, np.pad(preview.down, ((0, more), (0, 0))))]
            up = np.pad(preview.up, ((0, 0), (0, more)))
            return [self._matrix("F32" if self._exact else "Q4_0", up)]
        if not self._exact and not _NARROW.isdisjoint(name.split(".")):
            kind = "Q4_0"
        whole = self._trained.parameters[name]
        return [self._matrix(kind, each) for each in (np.split(whole, 2) if halves else [whole])]

    def _matrix(self, kind: str, matrix: LogitArray) -> CMatrix:
        inputs = matrix.shape[1]
        if inputs % GROUP:
            raise InvalidOption(
                f"a matrix of network '{self._trained.network.name}' has {inputs} columns, no "
                f"multiple of {GROUP}: use --runtime torch"
            )
        matrix = np.ascontiguousarray(matrix, dtype=np.float32)
        return self._packed.matrix(kind, quantize(kind, matrix), inputs)
